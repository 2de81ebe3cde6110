"""Users with passwords, a line each: `NAME:ROLE:HASH`. Passwords are kept as Argon2id alone, by argon2-cffi.

What is read is checked whole: a file with one bad line is refused by that line, and nobody is left out in silence. It
is written by `gpuctl config user`, and by hand; lines that begin with # and empty ones stay.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpufleet.errors import GpufleetError, Reason, invalid

FILE_BYTES_MAX = 4_000_000
USERS_MAX = 10_000
PASSWORD_CHARS_MIN, PASSWORD_CHARS_MAX = 8, 200
HASH_CHARS_MAX = 300
MEMORY_KIB_MAX, ROUNDS_MAX, LANES_MAX = 262_144, 20, 16
"""What a hash may want: one that wants more would keep the scheduler busy, and is refused as a bad line."""

USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")
ROLES = ("admin", "user", "viewer")
FORM = "NAME:ROLE:HASH, with a role of admin, user or viewer and a hash of gpuctl config user set"
INSTALL = "Install it with: pip install 'gpufleet[login]'"

_HASH = re.compile(
    r"\$argon2id\$v=19\$m=(\d{1,7}),t=(\d{1,3}),p=(\d{1,3})\$[A-Za-z0-9+/]{11,86}\$[A-Za-z0-9+/]{22,171}"
)


@dataclass(frozen=True, slots=True)
class FileUser:
    """A user of the file. `digest` changes with anything in the line, and tells nothing of the password."""

    name: str
    role: str
    password_hash: str

    @property
    def digest(self) -> str:
        """16 hexadecimal digits."""
        return hashlib.sha256(line_of(self).encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"FileUser({self.name}, {self.role})"


def line_of(user: FileUser) -> str:
    """The user as a line, without its end."""
    return f"{user.name}:{user.role}:{user.password_hash}"


def read_users(path: Path) -> Mapping[str, FileUser]:
    """The users of a file, by name. Raises FILE_NOT_FOUND, CONFIG_INVALID with the line, TOKEN_FILE_EXPOSED."""
    return users_in(_text_of(path), str(path))


def users_in(text: str, origin: str) -> Mapping[str, FileUser]:
    """The users of a text. Raises CONFIG_INVALID with the line."""
    found: dict[str, FileUser] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        user = _user_of(line)
        if isinstance(user, str):
            raise _wrong(f"{origin}:{number}", user)
        if user.name in found:
            raise _wrong(f"{origin}:{number}", f"user {user.name} stands there twice")
        if len(found) >= USERS_MAX:
            raise _wrong(f"{origin}:{number}", f"there are more than {USERS_MAX:,} users")
        found[user.name] = user
    return found


def check_password(option: str, password: str) -> None:
    """Raise INVALID_ARGUMENT where it cannot be a password; nothing of it is told."""
    if not PASSWORD_CHARS_MIN <= len(password) <= PASSWORD_CHARS_MAX or not password.isprintable():
        form = f"{PASSWORD_CHARS_MIN} to {PASSWORD_CHARS_MAX} characters that can be seen"
        raise invalid(option, "is no password", next_step=f"Choose one of {form}.")


def hash_password(password: str) -> str:
    """The password's hash, with a salt of its own. Takes some 50 ms and 64 MiB. Raises EXTRA_MISSING."""
    hashed: str = _hasher().hash(_normal(password))
    return hashed


def is_password(password: str, password_hash: str) -> bool:
    """Whether a hash is that of this password. Takes as long as making one: call it on a thread."""
    from argon2.exceptions import InvalidHashError, VerificationError

    try:
        return bool(_hasher().verify(password_hash, _normal(password)))
    except (VerificationError, InvalidHashError):
        return False


def write_users(path: Path, text: str) -> None:
    """Write the file whole, or not at all, for this account alone."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def with_user(text: str, user: FileUser) -> str:
    """The text of a file with this user's line in the place of theirs, or at its end."""
    lines = text.splitlines()
    places = [index for index, line in enumerate(lines) if line.partition(":")[0] == user.name]
    if places:
        lines[places[0]] = line_of(user)
    else:
        lines.append(line_of(user))
    return "".join(f"{line}\n" for line in lines)


def without_user(text: str, name: str) -> str:
    """The text of a file without this user's line."""
    return "".join(f"{line}\n" for line in text.splitlines() if line.partition(":")[0] != name)


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as problem:
        why = f"the file of users {path} cannot be read: {problem.strerror}"
        step = "Make it with: gpuctl config user set NAME --file FILE"
        raise GpufleetError(Reason.FILE_NOT_FOUND, why, next_step=step) from None
    if mode & 0o077:
        raise GpufleetError(
            Reason.TOKEN_FILE_EXPOSED,
            f"other accounts can read the file of users {path} (its mode is {mode:03o})",
            next_step=f"Take their right away with: chmod 600 {path}",
        )
    if len(content) > FILE_BYTES_MAX:
        raise _wrong(str(path), f"it is longer than {FILE_BYTES_MAX:,} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise _wrong(str(path), "it is no text in UTF-8") from None


def _user_of(line: str) -> FileUser | str:
    """The user of a line, or what is wrong with it; nothing of a hash is told."""
    parts = line.rstrip().split(":")
    if len(parts) != 3:
        return "this is no line of a user"
    name, role, password_hash = parts
    if not USER.fullmatch(name):
        return f"{name[:63]!r} is not a user's name: 1 to 63 letters, digits, '.', '-', '_' or '@'"
    if role not in ROLES:
        return f"{role[:40]!r} is no role of a person"
    found = _HASH.fullmatch(password_hash) if len(password_hash) <= HASH_CHARS_MAX else None
    if found is None:
        return f"what stands behind {name}:{role} is no hash of Argon2id"
    memory, rounds, lanes = map(int, found.groups())
    if not (8 * lanes <= memory <= MEMORY_KIB_MAX and 1 <= rounds <= ROUNDS_MAX and 1 <= lanes <= LANES_MAX):
        return f"the hash of {name} wants more memory, rounds or lanes than are taken"
    return FileUser(name, role, password_hash)


def _wrong(where: str, why: str) -> GpufleetError:
    return GpufleetError(Reason.CONFIG_INVALID, f"{where}: {why}", next_step=f"A line is {FORM}.")


def _normal(password: str) -> bytes:
    # What looks alike is typed as other code points on other machines.
    return unicodedata.normalize("NFC", password).encode("utf-8", "surrogatepass")


def _hasher() -> Any:
    try:
        from argon2 import PasswordHasher
    except ImportError:
        raise GpufleetError(Reason.EXTRA_MISSING, "passwords need the package argon2-cffi", next_step=INSTALL) from None
    return PasswordHasher()
