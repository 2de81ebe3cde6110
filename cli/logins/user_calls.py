"""What `config user` does with a file of users: nobody is asked, and no scheduler is needed."""

from __future__ import annotations

import fcntl
import getpass
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.fleet.reading import check_known
from gpufleet.security.users_file import (
    PASSWORD_CHARS_MAX,
    ROLES,
    USER,
    FileUser,
    check_password,
    hash_password,
    read_users,
    with_user,
    without_user,
    write_users,
)

from .. import screen
from ..render.table import Column, draw


def write_user(file: Path, name: str, role: str) -> None:
    """Set a user's password and role; a user who is there keeps the role unless another one is said."""
    if not USER.fullmatch(name):
        step = "Use 1 to 63 letters, digits, '.', '-', '_' or '@', beginning with a letter or digit."
        raise invalid("NAME", f"{name[:63]!r} is not a user's name", next_step=step)
    if role:
        check_known("--role", role, ROLES, "is no role of a person", "Write admin, user or viewer.")
    password = _password(name)
    check_password("password", password)
    password_hash = hash_password(password)
    with _changing(file) as (users, text):
        known = users.get(name)
        user = FileUser(name, role or (known.role if known else "user"), password_hash)
        write_users(file, with_user(text, user))
    print(f"user {name} ({user.role}) is {'changed' if known else 'added'}")
    screen.tell("A scheduler with this [login] users_file knows it within seconds; who was logged in by it is out.")


def show_users(file: Path) -> None:
    """Print the users, without anything of their passwords."""
    users = list(read_users(file).values())
    columns: list[Column[FileUser]] = [Column("USER", lambda each: each.name), Column("ROLE", lambda each: each.role)]
    empty = ["No users. Add one with: gpuctl config user set NAME --file FILE"]
    screen.print_lines(draw(columns, users, screen.look("table")) if users else empty)


def drop_user(file: Path, name: str) -> None:
    """Take a user out."""
    with _changing(file) as (users, text):
        if name not in users:
            step = f"See who is there with: gpuctl config user list --file {file}"
            raise GpufleetError(Reason.INVALID_ARGUMENT, f"NAME: {file} has no user {name[:63]!r}", next_step=step)
        write_users(file, without_user(text, name))
    print(f"user {name} is removed, and out within seconds")


@contextmanager
def _changing(file: Path) -> Iterator[tuple[Mapping[str, FileUser], str]]:
    """The users and the text of the file, which nobody else changes meanwhile."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(file.with_name(f".{file.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            write_users(file, "")
        yield read_users(file), file.read_text()


def _password(name: str) -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline(PASSWORD_CHARS_MAX + 2).removesuffix("\n").removesuffix("\r")
    password = getpass.getpass(f"Password of {name} (it is not shown): ")
    if getpass.getpass("The same again: ") != password:
        raise invalid("password", "was not typed the same twice", next_step="Try again.")
    return password
