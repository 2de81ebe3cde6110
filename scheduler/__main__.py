"""`python -m gpufleet.scheduler`: flags, settings, log; then `program.py`."""

import argparse
import asyncio
import errno
import gc
import os
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import gpufleet.host.grpc_forks  # before anything imports grpc
import gpufleet.host.grpc_names  # noqa: F401  the same
from gpufleet.config.live import Live
from gpufleet.config.merged import Resolved, load_program
from gpufleet.config.paths import log_file, program_config_file
from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.errors import GpufleetError, Reason, as_lines
from gpufleet.host import event_loop
from gpufleet.host.service_manager import ServiceManager
from gpufleet.telemetry import metrics
from gpufleet.telemetry import spans as telemetry
from gpufleet.telemetry.logs import ProgramLog

from .outputs.errors import OutputStoreUnavailable
from .store.errors import StoreCorrupt, StoreError, StoreLocked, TermSuperseded

FAILED, USAGE = 1, 2
SUPERSEDED = 6
"""Another scheduler leads now: started again with --standby, this one stands by for it."""

DAMAGED = (
    "Keep a copy of the data folder (or database) as it is; gpuctl scheduler --verify names what is wrong."
    " Then go back to a backup: docs/troubleshooting.md says more."
)

GC_THRESHOLDS = (10_000, 20, 50)
"""New objects, and rounds, before the collector looks: what a scheduler makes is nearly all free of cycles."""


def parser() -> argparse.ArgumentParser:
    """The flags; each is a setting of scheduler.toml, too."""
    flags = argparse.ArgumentParser(
        prog="gpuctl scheduler",
        description="The one process that decides. Stop it with Ctrl-C or SIGTERM.",
        epilog="docs/backup.md is about backup and restore; each says with --help what it takes.",
    )
    _add_places(flags, None)
    flags.add_argument("--host", help="where to listen (default 127.0.0.1)")
    flags.add_argument("--port", help="the port to listen on (default 50051; 0 takes any free one)")
    flags.add_argument("--tls-cert", metavar="FILE", help="the server's certificate (see: gpuctl config certificate)")
    flags.add_argument("--tls-key", metavar="FILE", help="the private key of the certificate")
    flags.add_argument(
        "--standby",
        action="store_const",
        const=True,
        help="stand by while another scheduler leads on the same PostgreSQL, and lead when it is gone",
    )
    flags.add_argument("--insecure", action="store_const", const=True, help="listen beyond this machine without TLS")
    flags.add_argument("--metrics-port", metavar="PORT", help="serve /metrics to Prometheus on this port (default: no)")
    flags.add_argument("--log-level", choices=("debug", "info", "warning", "error"))
    flags.add_argument("--log-format", choices=("text", "json"))
    flags.add_argument("--verbose", action="store_true", help="the same as --log-level debug")
    flags.add_argument(
        "--verify", action="store_true", help="check all that is stored, change nothing, and leave: 0 is well, 1 is not"
    )
    flags.add_argument("--check-settings", action="store_true", help="say what is wrong with the settings, and leave")
    flags.add_argument(
        "--accept-restored",
        action="store_true",
        help="go on with a database that was put back, or is empty: numbers of jobs go on above all that were seen",
    )
    commands = flags.add_subparsers(dest="command", metavar="backup | restore", help="in place of being the scheduler")
    _add_backup(commands.add_parser("backup", description="Copy the database and the keys, also while it is used."))
    _add_restore(commands.add_parser("restore", description="Put a backup back, before the scheduler is started."))
    return flags


def _add_places(flags: argparse.ArgumentParser, unset: str | None) -> None:
    """The settings that say where everything is; `unset` is what they are where they are not given."""
    say = flags.add_argument
    say("--data", metavar="DIR", default=unset, help="the folder of database, tokens, output and logs")
    say("--store", metavar="URL", default=unset, help="a database, such as postgresql://user@host/name")
    about_file = "scheduler.toml (see: gpuctl config init scheduler)"
    say("--config", metavar="FILE", type=Path, default=unset, help=about_file)


def _add_backup(flags: argparse.ArgumentParser) -> None:
    # Behind the command they are the same as before it, and one that is not given there is as it was before.
    _add_places(flags, argparse.SUPPRESS)
    flags.add_argument("file", metavar="FILE", help="where to; - is standard output")
    flags.add_argument("--force", action="store_true", help="replace a file that is there, once the new one is whole")
    flags.add_argument("--with-output", action="store_true", help="put in what jobs printed, and not only a list of it")
    flags.add_argument("--check", action="store_true", help="say whether FILE is a whole backup, and leave")


def _add_restore(flags: argparse.ArgumentParser) -> None:
    _add_places(flags, argparse.SUPPRESS)
    flags.add_argument("file", metavar="FILE", type=Path, help="a backup")
    flags.add_argument(
        "--replace", action="store_true", help="put it in the place of a database and keys, which are kept beside it"
    )


def main() -> int:
    """Run the scheduler; the exit code."""
    given = parser().parse_args()
    named = {
        "host": given.host,
        "port": given.port,
        "data": given.data,
        "store": given.store,
        "insecure": given.insecure,
        "standby": given.standby,
        "metrics.port": given.metrics_port,
        "tls.cert_file": given.tls_cert,
        "tls.key_file": given.tls_key,
        "log.level": "debug" if given.verbose else given.log_level,
        "log.format": given.log_format,
    }
    flags = {key: value for key, value in named.items() if value is not None}

    def read() -> Resolved[SchedulerSettings]:
        return load_program(
            SchedulerSettings,
            "scheduler",
            flags=flags,
            environment=os.environ,
            file=given.config or program_config_file("scheduler"),
            file_is_named=given.config is not None,
        )

    try:
        if given.command is not None:
            return _backup_or_restore(read, given)
        if given.check_settings:
            return _check_settings(read().settings)
        return _verify(read().settings) if given.verify else _run(Live(read), accepts_restored=given.accept_restored)
    except GpufleetError as error:
        print(as_lines(error), file=sys.stderr)
        return FAILED
    except TermSuperseded as error:
        print(f"this scheduler does not lead any more: {error}", file=sys.stderr)
        print("Start it again with --standby, and it stands by.", file=sys.stderr)
        return SUPERSEDED
    except StoreError as error:
        is_start = not given.verify and given.command is None
        another = ", start this one with --standby, or give it a store of its own"
        another = another if isinstance(error, StoreLocked) and is_start else ""
        print(f"the store cannot be used: {error}{another}", file=sys.stderr)
        if isinstance(error, StoreCorrupt):
            print(DAMAGED, file=sys.stderr)
        return FAILED
    except OutputStoreUnavailable as error:
        print(f"the stored output cannot be used: {error}", file=sys.stderr)
        print(
            "Make it a folder that this account can write, or give another data folder with --data DIR.",
            file=sys.stderr,
        )
        return FAILED


def _run(settings: Live[SchedulerSettings], *, accepts_restored: bool) -> int:
    from .known_store import Memory
    from .leading.opening import can_be_shared, data_folder_held
    from .leading.starting import come_to_lead, reload_settings
    from .program import Program

    _make_data_folder(settings.now.data)
    file = log_file(settings.now.data, "scheduler")
    is_scraped = settings.now.metrics.port is not None
    with (
        data_folder_held(settings.now),
        ProgramLog("scheduler", settings.now.log, file) as program_log,
        closing(telemetry.start("scheduler")) as traces,
        closing(metrics.start("scheduler", is_scraped=is_scraped)) as measured,
    ):

        async def serve() -> None:
            # What is loaded stays: the collector need not look through every job, now or later.
            memory = Memory(settings.now.data, accepts=accepts_restored)
            service = ServiceManager()
            opened = None
            # From here on it ends nothing; a program that serves puts its own in the place of this one.
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload_settings, settings, program_log)
            if can_be_shared(settings.now):
                opened = await come_to_lead(settings, memory, measured, service)
                if opened is None:
                    return  # told to stop before it led
            gc.disable()
            program = Program(
                settings, program_log, file, traces, measured, memory=memory, opened=opened, service=service
            )
            gc.freeze()
            gc.enable()
            gc.set_threshold(*GC_THRESHOLDS)
            await program.run()

        event_loop.run(serve(), settings.now.event_loop)
    return 0


def _backup_or_restore(read: Callable[[], Resolved[SchedulerSettings]], given: argparse.Namespace) -> int:
    from .backup import commands

    if given.command == "restore":
        return commands.restore(read().settings, given.file, replaces=given.replace)
    if given.check:
        return commands.check(Path(given.file))
    return commands.backup(read().settings, given.file, replaces=given.force, has_output=given.with_output)


def _check_settings(settings: SchedulerSettings) -> int:
    from gpufleet.net.tls import check_protection, server_credentials

    tls, has_tls = settings.tls, False
    if tls.cert_file is not None and tls.key_file is not None:
        server_credentials(tls.cert_file, tls.key_file, tls.client_ca_file)
        has_tls = True
    check_protection(settings.host, has_tls=has_tls, is_insecure=settings.insecure)
    return 0


def _verify(settings: SchedulerSettings) -> int:
    from .verifying import verify

    problems, looked_at = verify(settings)
    for problem in problems:
        print(problem)
    if problems:
        print("Keep a copy of the data folder; docs/troubleshooting.md says what helps.", file=sys.stderr)
        return FAILED
    print(f"all is well: {looked_at}")
    return 0


def _make_data_folder(data: Path) -> None:
    """Make the folder before anything is put into it: tokens, commands and output are nobody else's business."""
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(data, os.O_RDONLY | os.O_DIRECTORY))
        if not os.access(data, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as problem:
        raise GpufleetError(
            Reason.FILE_NOT_FOUND,
            f"the data folder {data} cannot be used: {problem.strerror}",
            next_step="Give a folder that this account can write, with --data DIR.",
        ) from None


if __name__ == "__main__":
    sys.exit(main())
