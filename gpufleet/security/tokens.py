"""Bearer tokens: how they are made, stored, checked, kept in files and found.

A token is `gf_` and 43 characters for 32 random bytes. A server stores only its hash. That hash is one
round of SHA-256 on purpose: slow hashes protect passwords, which people choose and others can guess; 256
random bits are beyond guessing at any speed, and a slow hash would only make every call slow.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from gpufleet.errors import GpufleetError, Reason

TOKEN_PREFIX = "gf_"
TOKEN_RANDOM_BYTES = 32
TOKEN_CHARACTERS = 43
"""Behind the prefix."""

TOKEN_VARIABLE = "GPUCTL_TOKEN"
TOKEN_FILE_BYTES_MAX = 4096

CREDENTIALS_VARIABLE = "CREDENTIALS_DIRECTORY"
"""The folder of what a systemd unit's LoadCredential= names."""

_TOKEN = re.compile(rf"gf_[A-Za-z0-9_-]{{{TOKEN_CHARACTERS}}}(?![A-Za-z0-9_-])")


def make_token() -> str:
    """A new token: the prefix says what it is when it turns up where it should not be."""
    import secrets

    return TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_RANDOM_BYTES)


def is_token(text: str) -> bool:
    """Whether the text has the form of a token; says nothing about whether a server knows it."""
    return _TOKEN.fullmatch(text) is not None


def hash_token(token: str) -> str:
    """What a server stores and looks tokens up by: 64 hexadecimal digits."""
    import hashlib  # here and not above: the CLI only reads tokens and should not wait for it

    return hashlib.sha256(token.encode()).hexdigest()


def token_matches(token: str, token_hash: str) -> bool:
    """Whether the token has this hash, in a time that tells nothing about how much of it is right."""
    import hmac

    return hmac.compare_digest(hash_token(token), token_hash)


def mask_tokens(text: str) -> str:
    """The text with every token in it cut to its prefix, for logs and bundles."""
    return _TOKEN.sub(f"{TOKEN_PREFIX}…", text) if TOKEN_PREFIX in text else text


def write_token_file(path: Path, token: str) -> None:
    """Write the token so that only this account can read it, whole or not at all; replaces an older one."""
    assert is_token(token)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    # O_EXCL and a mode from birth: at no moment does a file with the token exist that others can open.
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(token + "\n")
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def read_token_file(path: Path) -> str:
    """The token in the file; refuses one that others can read, or that is missing or something else."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read(TOKEN_FILE_BYTES_MAX)
    except FileNotFoundError:
        raise GpufleetError(
            Reason.FILE_NOT_FOUND,
            f"there is no token file {path}",
            next_step="Check the path, or ask an admin for a token: gpuctl token create",
        ) from None
    except OSError as problem:
        raise GpufleetError(
            Reason.TOKEN_FILE_INVALID, f"the token file {path} cannot be read: {problem.strerror}"
        ) from None
    if mode & 0o077 and not _is_credential(path):
        raise GpufleetError(
            Reason.TOKEN_FILE_EXPOSED,
            f"other accounts can read the token file {path} (its mode is {mode:03o})",
            next_step=f"Take their right away with: chmod 600 {path}",
        )
    token = content.decode("ascii", "replace").strip()
    if not is_token(token):
        raise GpufleetError(Reason.TOKEN_FILE_INVALID, f"the file {path} {_lacks(token)}")
    return token


def _is_credential(path: Path) -> bool:
    """Whether a service manager laid it there for this program alone: it grants that beside the mode."""
    folder = os.environ.get(CREDENTIALS_VARIABLE, "")
    return bool(folder) and path.parent == Path(folder)


def _lacks(text: str) -> str:
    whole = f"{TOKEN_PREFIX} and {TOKEN_CHARACTERS} characters"
    if text.startswith(TOKEN_PREFIX):
        return f"does not hold a whole token: it is {whole}"
    return f"does not hold a gpufleet token, which is {whole}" if text else "is empty"


class FoundToken(NamedTuple):
    """A token and where it came from, in words; the token itself stays out of its repr."""

    token: str
    origin: str

    def __repr__(self) -> str:
        return f"FoundToken({self.origin})"


def find_token(flag_file: Path | None, environment: Mapping[str, str], context_file: Path | None) -> FoundToken | None:
    """The token to use: of --token-file, else GPUCTL_TOKEN, else the context's file; None when none is named.

    What is named but unusable is an error and never skipped: falling through to another token would act as
    someone else.
    """
    if flag_file is not None:
        return FoundToken(read_token_file(flag_file), f"--token-file {flag_file}")
    if given := environment.get(TOKEN_VARIABLE, "").strip():
        if not is_token(given):
            raise GpufleetError(
                Reason.TOKEN_INVALID,
                f"{TOKEN_VARIABLE} {_lacks(given)}",
                next_step=f"Set it to a whole token, or unset {TOKEN_VARIABLE} to use the context's.",
            )
        return FoundToken(given, TOKEN_VARIABLE)
    if context_file is not None:
        return FoundToken(read_token_file(context_file), f"context ({context_file})")
    return None
