"""Of several addresses of a scheduler: each asked on its own, at the same time; which serves, and what the others are.

A standby does not listen, so that an address which refuses is as it should be while another one serves.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from gpufleet.v1 import scheduler_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.client import connected
from gpufleet.fleet.encryption import check_tls, silence_fix
from gpufleet.fleet.finding import Finding, Verdict, failed, ok
from gpufleet.fleet.settings import Settings
from gpufleet.net.addresses import Address

from .cluster import judge_refusal
from .network import check_name, check_port

ANSWER_SECONDS_MAX = 5.0
"""One of several that says nothing for so long is left."""

WHAT = "address"


class _AddressLooked(NamedTuple):
    """What was found at one address."""

    finding: Finding
    serves: bool = False
    is_refused: bool = False


def check_each_address(settings: Settings) -> Iterator[Finding]:
    """A finding for each address; none of them is a failure where one serves."""
    addresses = settings.addresses
    with ThreadPoolExecutor(len(addresses)) as threads:
        looked = list(threads.map(lambda address: _look(settings, address), addresses))
    is_served = any(each.serves for each in looked)
    for number, (address, each) in enumerate(zip(addresses, looked, strict=True), 1):
        place = f"{number} of {len(addresses)}, {address}"
        if is_served and each.is_refused:
            yield ok(WHAT, f"{place}: nothing listens, as it is where a scheduler stands by, or is off")
        elif is_served and not each.serves:
            # Nobody could go over to it.
            found = each.finding
            yield replace(found, what=WHAT, verdict=Verdict.WARNING, sentence=f"{place}: {found.sentence}")
        else:
            yield replace(each.finding, what=WHAT, sentence=f"{place}: {each.finding.sentence}")


def _look(settings: Settings, address: Address) -> _AddressLooked:
    try:
        for check in (check_name(address.host), check_port(address)):
            if check.verdict is Verdict.FAILED:
                return _AddressLooked(check, is_refused=check.what == "port" and "nothing listens at" in check.sentence)
        alone = settings.only(address, ANSWER_SECONDS_MAX)
        protection = check_tls(alone.target())
        if protection.verdict is Verdict.FAILED:
            return _AddressLooked(protection)
        return _asked(alone, address, protection)
    except GpufleetError as problem:
        return _AddressLooked(judge_refusal(problem))


def _asked(alone: Settings, address: Address, protection: Finding) -> _AddressLooked:
    try:
        with connected(alone) as client:
            server = client.call(client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest())
    except GpufleetError as problem:
        if problem.reason is Reason.DEADLINE:
            sentence = f"takes connections and does not answer in {alone.connection_timeout_s:g} s"
            return _AddressLooked(failed(WHAT, sentence, silence_fix(address)))
        if problem.reason is Reason.SCHEDULER_UNREACHABLE:
            return _AddressLooked(failed(WHAT, problem.message, silence_fix(address)))
        # It answers, though not this caller: what is wrong with the token is told below.
        return _AddressLooked(ok(WHAT, "serves"), serves=True)
    return _AddressLooked(ok(WHAT, f"serves, version {server.version}; TLS: {protection.sentence}"), serves=True)
