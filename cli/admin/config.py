"""`config`: settings of this command line and of the programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ..app import Family
from ..declaring import Argument, Option
from ..options import Connection, Printing

config = Family("config", "Write, check and show settings; choose a scheduler.")
contexts = Family("context", "Schedulers that this account uses, by name.")
config.add_typer(contexts)
users = Family("user", "Users with passwords, in a file of the scheduler's machine.")
config.add_typer(users)

Program = Annotated[str, Argument(metavar="PROGRAM", help="scheduler, agent or gateway.")]


@config.subcommand("init")
def init(
    program: Program,
    file: Annotated[
        Path | None, Option("--file", metavar="FILE", help="Where to write; - is stdout. The program's own by default.")
    ] = None,
    force: Annotated[bool, Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a program's settings file with every setting explained and commented out."""
    from .config_files import write_template

    write_template(program, file, is_forced=force)


@config.subcommand("check")
def check(
    file: Annotated[Path, Argument(metavar="FILE", help="A settings file.")],
    program: Annotated[
        str,
        Option(
            "--program",
            metavar="PROGRAM",
            help="Whose it is, when its name does not tell: scheduler, agent or gateway.",
        ),
    ] = "",
) -> None:
    """Check a settings file: every mistake with its line."""
    from .config_files import check_file

    check_file(file, program)


@config.subcommand("show")
def show(
    options: Printing,
    origin: Annotated[bool, Option("--origin", help="Show where each value came from.")] = False,
    program: Annotated[
        str,
        Option(
            "--program",
            metavar="PROGRAM",
            help="Those of the running scheduler instead (scheduler), or of an agent or gateway that is started here.",
        ),
    ] = "",
) -> None:
    """Show the settings that hold: flag over GPUCTL_* over ./gpuctl.toml over context over default."""
    from .config_files import show_settings

    show_settings(options.settings(), program, with_origin=origin)


@config.subcommand("log-level")
def log_level(
    program: Annotated[str, Argument(metavar="PROGRAM", help="scheduler, or agent:NODE.")],
    level: Annotated[str, Argument(metavar="LEVEL", help="debug, info, warning or error.")],
    options: Connection,
) -> None:
    """Change how much a running program logs, until it is started again."""
    from .config_files import change_log_level

    change_log_level(options.settings(), program, level)


@config.subcommand("certificate")
def certificate(
    hosts: Annotated[
        list[str] | None,
        Argument(metavar="HOST…", help="Names and addresses by which others reach it; this host's name by default."),
    ] = None,
    folder: Annotated[
        Path | None, Option("--dir", metavar="DIR", help="Where to; tls in the scheduler's data folder by default.")
    ] = None,
    client: Annotated[
        str,
        Option(
            "--client",
            metavar="IDENTITY",
            help="One of a client in place of the scheduler's: node:gpu1, gateway:edge, worker:w1, user:ann, or job.",
        ),
    ] = "",
) -> None:
    """Make a certificate for this machine's scheduler, or for a client of it, signed by an authority of your own."""
    from .certificate_calls import make, make_of_client

    if client:
        make_of_client(client, hosts or (), folder)
    else:
        make(hosts or (), folder)


@contexts.subcommand("list")
def list_contexts(options: Printing) -> None:
    """List the contexts; the star marks the one in use."""
    from .config_files import show_contexts

    show_contexts(options.settings())


@contexts.subcommand("use")
def use(name: Annotated[str, Argument(metavar="NAME", help="A context's name.")]) -> None:
    """Use this context from now on."""
    from .config_files import use_context

    use_context(name)


@contexts.subcommand("add")
def add(
    name: Annotated[str, Argument(metavar="NAME", help="A name for it.")],
    scheduler: Annotated[str, Option("--scheduler", metavar="HOST:PORT,…", help="Where the scheduler is.")],
    token_file: Annotated[
        Path | None, Option("--token-file", metavar="FILE", help="A file of mode 0600 with your token.")
    ] = None,
    ca_file: Annotated[
        Path | None, Option("--ca-file", metavar="FILE", help="Certificates that vouch for the scheduler.")
    ] = None,
    client_cert_file: Annotated[
        Path | None, Option("--client-cert-file", metavar="FILE", help="Your own certificate with its key.")
    ] = None,
    insecure: Annotated[bool, Option("--insecure", help="Speak without TLS beyond this machine.")] = False,
    gateway: Annotated[
        str | None, Option("--gateway", metavar="URL", help="The gateway that served models are asked through.")
    ] = None,
    shared_root: Annotated[
        Path | None, Option("--shared-root", metavar="DIR", help="The folder that its nodes see, too.")
    ] = None,
    use_now: Annotated[bool, Option("--use", help="Use it from now on.")] = False,
) -> None:
    """Add a context, or replace the one of that name."""
    from .config_files import add_context

    add_context(
        name,
        scheduler,
        token_file,
        ca_file,
        gateway,
        client_cert_file,
        shared_root,
        is_insecure=insecure,
        is_used=use_now,
    )


UsersFile = Annotated[
    Path, Option("--file", metavar="FILE", help="The file that [login] users_file of scheduler.toml names.")
]
UserArgument = Annotated[str, Argument(metavar="NAME", help="The user's name.")]


@users.subcommand("set")
def set_user(
    name: UserArgument,
    file: UsersFile,
    role: Annotated[
        str, Option("--role", metavar="ROLE", help="admin, user or viewer; as it was, or user, by default.")
    ] = "",
) -> None:
    """Add a user, or give one another password, which is asked for, or read as a line of standard input."""
    from ..logins.user_calls import write_user

    write_user(file, name, role)


@users.subcommand("list")
def list_users(file: UsersFile) -> None:
    """List the users and their roles."""
    from ..logins.user_calls import show_users

    show_users(file)


@users.subcommand("remove")
def remove_user(name: UserArgument, file: UsersFile) -> None:
    """Take a user out; who is logged in by the password is out within seconds."""
    from ..logins.user_calls import drop_user

    drop_user(file, name)
