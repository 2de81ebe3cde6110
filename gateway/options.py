"""What the gateway's command line says."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from gpufleet.addresses import Address, parse_address
from gpufleet.errors import GpufleetError, Reason
from gpufleet.paths import state_dir
from gpufleet.tokens import find_token

PORT = 7860


def parser() -> argparse.ArgumentParser:
    """The flags."""
    flags = argparse.ArgumentParser(
        prog="gpuctl gateway",
        description="Let people in browsers hold sessions with models. Stop it with Ctrl-C or SIGTERM: turns are kept "
        "for 15 s, places for 60 s, and another gateway can take them over.",
    )
    flags.add_argument("--host", default="127.0.0.1", help="where to listen (default 127.0.0.1)")
    flags.add_argument("--port", type=_port, default=PORT, metavar="PORT", help=f"default {PORT}; 0: any free one")
    flags.add_argument("--scheduler", metavar="HOST:PORT[,…]", help="where the scheduler is; several are tried in turn")
    flags.add_argument("--token-file", metavar="FILE", type=Path, help="file with the gateway's token")
    flags.add_argument(
        "--origin", metavar="URL", action="append", default=[], help="a page elsewhere that may connect; repeatable"
    )
    flags.add_argument("--ca-file", metavar="FILE", type=Path, help="authority that signed the scheduler's certificate")
    flags.add_argument("--tls-cert", metavar="FILE", type=Path, help="this gateway's certificate")
    flags.add_argument("--tls-key", metavar="FILE", type=Path, help="the private key of the certificate")
    flags.add_argument("--insecure", action="store_true", help="no TLS beyond this machine")
    flags.add_argument("--verbose", action="store_true", help="the same as --log-level debug")
    flags.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    flags.add_argument("--log-format", choices=("text", "json"), default="text")
    return flags


def schedulers_of(given: argparse.Namespace) -> tuple[Address, ...]:
    """Where the scheduler is: --scheduler, GPUCTL_SCHEDULER, or this machine."""
    text: str = given.scheduler or os.environ.get("GPUCTL_SCHEDULER") or "127.0.0.1"
    return tuple(parse_address(each) for each in text.split(","))


def token_of(given: argparse.Namespace) -> str:
    """The gateway's token: --token-file, GPUCTL_TOKEN, or that of a scheduler of this account on this machine.

    Raises TOKEN_MISSING.
    """
    local = state_dir("scheduler") / "gateway.token"
    found = find_token(given.token_file, os.environ, local if local.exists() else None)
    if found is None:
        raise GpufleetError(
            Reason.TOKEN_MISSING,
            "a gateway needs a token of role gateway",
            next_step="Give --token-file FILE: a scheduler's first start made gateway.token in its data folder.",
        )
    return found.token


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port")
    return int(text)
