"""Trouble with TLS is told in the doctor's sentences by every command, and gRPC's own log stays silent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from cli.doctor.checks import examine
from cli.doctor.wishes import Wishes
from cli.options import Connection
from gpufleet.fleet.finding import Verdict
from gpufleet.fleet.settings import resolve
from gpufleet.net.certificates import make_certificates
from gpufleet.net.tls import server_credentials
from tests.cli.conftest import run_here


@dataclass(frozen=True)
class Servers:
    """Three that answer nothing, as no call gets so far."""

    authority: Path
    other_authority: Path
    encrypted: str
    of_other_name: str
    plain: str


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """With a certificate for this address, with one for another name, and without TLS."""
    folder = tmp_path_factory.mktemp("tls")
    good = make_certificates(folder / "good", ["127.0.0.1"])
    other = make_certificates(folder / "other", ["gpu9.lab"])
    server = grpc.server(ThreadPoolExecutor(1))
    # The second one's is for its name alone: make_certificates adds this machine's own to any.
    lone = folder / "lone"
    lone.mkdir()
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=gpu9.lab", "-addext", "subjectAltName=DNS:gpu9.lab", "-days", "9"]
    key, cert = lone / "key.pem", lone / "cert.pem"
    subprocess.run([*command, *names, "-keyout", key, "-out", cert], check=True, capture_output=True)
    ports = [
        server.add_secure_port("127.0.0.1:0", server_credentials(good.cert_file, good.key_file)),
        server.add_secure_port("127.0.0.1:0", server_credentials(cert, key)),
        server.add_insecure_port("127.0.0.1:0"),
    ]
    server.start()
    yield Servers(good.ca_file, other.ca_file, *(f"127.0.0.1:{port}" for port in ports))
    server.stop(None).wait()


CASES = ["plain against TLS", "TLS against plain", "wrong authority", "wrong name", "no PEM", "no file"]
SAID = {
    "plain against TLS": ("the scheduler wants TLS, and this speaks without", "--ca-file FILE"),
    "TLS against plain": ("the scheduler does not speak TLS", "gpuctl config certificate"),
    "wrong authority": ("the certificate is not trusted", "Name the authority that signed it: --ca-file FILE"),
    "wrong name": ("certificate is not valid for '127.0.0.1'", "or name the scheduler as its certificate does"),
    "no PEM": ("is no PEM file with a certificate", "ca.pem beside it"),
    "no file": ("cannot be read: No such file or directory", "path"),
}
CODES = {"no PEM": 2, "no file": 3}
"""Others are 5: no scheduler."""


def options_of(case: str, servers: Servers, folder: Path) -> list[str]:
    no_pem = folder / "ca.pem"
    no_pem.write_text("hello\n")
    address, authority = {
        "plain against TLS": (servers.encrypted, None),
        "TLS against plain": (servers.plain, servers.authority),
        "wrong authority": (servers.encrypted, servers.other_authority),
        "wrong name": (servers.of_other_name, folder / "lone.pem"),
        "no PEM": (servers.encrypted, no_pem),
        "no file": (servers.encrypted, folder / "missing.pem"),
    }[case]
    if case == "wrong name":
        lone = servers.authority.parents[1] / "lone" / "cert.pem"
        (folder / "lone.pem").write_bytes(lone.read_bytes())
    return ["--scheduler", address, *(["--ca-file", str(authority)] if authority else [])]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "command", ["queue", "submit", "run", "logs 1", "wait 1", "job 1", "cancel 1", "nodes", "top", "models", "queue -w"]
)
def test_every_command_says_what_is_wrong_with_tls(case: str, command: str, servers: Servers, tmp_path: Path) -> None:
    name, *rest = command.split()
    if command in ("submit", "run"):
        rest = ["--", "true"]
    done = run_here(name, *options_of(case, servers, tmp_path), *rest)
    first, second = done.err.splitlines()[:2]
    assert SAID[case][0] in first, done.err
    assert SAID[case][1] in second, done.err
    assert "SSL_ERROR" not in done.err
    assert done.code == (125 if name in ("run", "wait") else CODES.get(case, 5))


@pytest.mark.parametrize("case", CASES)
def test_the_doctor_says_the_same(case: str, servers: Servers, tmp_path: Path) -> None:
    words = options_of(case, servers, tmp_path)
    file = Path(words[3]) if len(words) > 2 else None
    found = list(examine(resolve(Connection(scheduler=words[1], ca_file=file)), Wishes(agent_data=None)))
    assert found[-1].verdict is Verdict.FAILED
    assert SAID[case][0] in found[-1].sentence


def test_in_json_the_reason_is_a_word(servers: Servers) -> None:
    error = json.loads(run_here("queue", "-o", "json", "--scheduler", servers.encrypted).err)["error"]
    assert (error["reason"], error["exit_code"]) == ("TLS_FAILED", 5)
    assert "Socket closed" in error["metadata"]["grpc"]


def gpuctl_alone(*arguments: str, **environment: str) -> str:
    """What a process of its own writes to stderr: gRPC's log goes there past Python."""
    command = [sys.executable, "-P", "-m", "gpufleet.cli", *arguments]
    own = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**own, **environment})
    return done.stderr


def test_grpcs_own_log_is_silent_unless_it_is_asked_for(servers: Servers, tmp_path: Path) -> None:
    wrong = options_of("wrong authority", servers, tmp_path)
    assert len(gpuctl_alone("queue", *wrong).splitlines()) == 2
    assert "ssl_transport_security" in gpuctl_alone("queue", *wrong, GRPC_VERBOSITY="info")


def test_nothing_that_is_started_from_here_inherits_the_silence() -> None:
    code = (
        "import os; from gpufleet.net.grpc_import import import_grpc_lightly; import_grpc_lightly(); "
        "import grpc, grpc.aio; "
        "assert 'GRPC_VERBOSITY' not in os.environ; print(grpc.__version__)"
    )
    own = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=own)
    assert done.stdout and not done.stderr
