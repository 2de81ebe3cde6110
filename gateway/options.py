"""What the gateway's command line says, and the settings that it makes with variables and gateway.toml."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Callable
from pathlib import Path

from gpufleet.config.gateway_settings import GatewaySettings
from gpufleet.config.merged import Resolved, settings_reader
from gpufleet.config.paths import state_dir
from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.program_credential import CREDENTIAL_FILE, ProgramCredential
from gpufleet.security.tokens import find_token


def parser() -> argparse.ArgumentParser:
    """The flags. What is not given comes from GPUCTL_GATEWAY_*, gateway.toml, or a default."""
    flags = argparse.ArgumentParser(
        prog="gpuctl gateway",
        description="Let people in browsers hold sessions with models. Stop it with Ctrl-C or SIGTERM: turns are kept "
        "for 15 s, places for 60 s, and another gateway can take them over.",
    )
    flags.add_argument("--host", help="where to listen (default 127.0.0.1)")
    flags.add_argument("--port", help="the port to listen on (default 7860; 0 takes any free one)")
    flags.add_argument(
        "--grpc-port",
        metavar="PORT",
        help="answer the Open Inference Protocol over gRPC on this port (default: no; 0 takes any free one)",
    )
    flags.add_argument("--scheduler", metavar="HOST:PORT[,…]", help="where the scheduler is; several are tried in turn")
    flags.add_argument("--data", metavar="DIR", help="the folder of the log; each gateway of a machine has its own")
    flags.add_argument("--gateway-id", metavar="NAME", help="the name that it joins under (default: the host name)")
    flags.add_argument("--token-file", metavar="FILE", help="file with the gateway's token")
    flags.add_argument(
        "--origin", metavar="URL", action="append", dest="origins", help="a page elsewhere that may connect; repeatable"
    )
    flags.add_argument(
        "--program-host",
        metavar="HOST",
        action="append",
        dest="program_hosts",
        help="a host name of this gateway below which programs have their own, NAME.HOST; repeatable "
        "(default localhost)",
    )
    flags.add_argument("--ca-file", metavar="FILE", help="authority that signed the scheduler's certificate")
    flags.add_argument(
        "--client-cert-file",
        metavar="FILE",
        help="this gateway's certificate with its key, where the scheduler asks for one",
    )
    flags.add_argument("--tls-cert", dest="tls.cert_file", metavar="FILE", help="this gateway's certificate")
    flags.add_argument("--tls-key", dest="tls.key_file", metavar="FILE", help="the private key of the certificate")
    flags.add_argument(
        "--metrics-port",
        dest="metrics.port",
        metavar="PORT",
        help="serve /metrics to Prometheus on this port (default: no)",
    )
    flags.add_argument("--insecure", action="store_const", const=True, help="no TLS beyond this machine")
    flags.add_argument("--config", metavar="FILE", type=Path, help="gateway.toml (see: gpuctl config init gateway)")
    flags.add_argument("--check-settings", action="store_true", help="say what is wrong with the settings, and leave")
    flags.add_argument("--verbose", action="store_true", help="the same as --log-level debug")
    flags.add_argument("--log-level", dest="log.level", choices=("debug", "info", "warning", "error"))
    flags.add_argument("--log-format", dest="log.format", choices=("text", "json"))
    return flags


def credential_of(settings: GatewaySettings) -> ProgramCredential:
    """What it calls its scheduler with: a credential of its own, once its token was traded for one, else that."""
    return ProgramCredential(settings.data / CREDENTIAL_FILE, gateway_name(settings), lambda: token_of(settings))


def gateway_name(settings: GatewaySettings) -> str:
    """The gateway's name: --gateway-id, or that of its machine."""
    return settings.gateway_id or socket.gethostname()


def reader_of(given: argparse.Namespace) -> Callable[[], Resolved[GatewaySettings]]:
    """Reads the settings, now and again at a reload."""
    level = "debug" if given.verbose else vars(given)["log.level"]
    return settings_reader(GatewaySettings, "gateway", given, **{"log.level": level})


def token_of(settings: GatewaySettings) -> str:
    """The gateway's token: --token-file, GPUCTL_TOKEN, or that of a scheduler of this account on this machine.

    Raises TOKEN_MISSING.
    """
    local = state_dir("scheduler") / "gateway.token"
    found = find_token(settings.token_file, os.environ, local if local.exists() else None)
    if found is None:
        raise GpufleetError(
            Reason.TOKEN_MISSING,
            "a gateway needs a token of role gateway",
            next_step="Give --token-file FILE: a scheduler's first start made gateway.token in its data folder.",
        )
    return found.token
