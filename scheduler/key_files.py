"""Keys in the scheduler's data folder: a line of hexadecimal digits in a file that no other account reads."""

import os
import secrets
import stat
from pathlib import Path

from gpufleet.errors import GpufleetError, Reason

KEY_BYTES = 32


def read_or_make_key(file: Path, next_step: str) -> bytes:
    """The key in a file, which is made where there is none. `next_step`: what to do about a file that holds none.

    Errors: TOKEN_FILE_EXPOSED, CONFIG_INVALID, FILE_NOT_FOUND where the file can neither be read nor made.
    """
    try:
        try:
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as made:
                made.write(secrets.token_hex(KEY_BYTES) + "\n")
                made.flush()
                os.fsync(made.fileno())
        except FileExistsError:
            pass
        return read_key(file, next_step)
    except OSError as problem:
        raise GpufleetError(Reason.FILE_NOT_FOUND, f"the key {file} cannot be made: {problem.strerror}") from None


def read_key(file: Path, next_step: str) -> bytes:
    """The key in a file. Errors: FILE_NOT_FOUND, TOKEN_FILE_EXPOSED, CONFIG_INVALID."""
    try:
        mode, text = stat.S_IMODE(file.stat().st_mode), file.read_bytes()
    except OSError as problem:
        raise GpufleetError(Reason.FILE_NOT_FOUND, f"the key {file} cannot be read: {problem.strerror}") from None
    if mode & 0o077:
        raise GpufleetError(Reason.TOKEN_FILE_EXPOSED, f"other accounts can read {file}")
    try:
        key = bytes.fromhex(text.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise GpufleetError(
            Reason.CONFIG_INVALID, f"{file} does not hold {2 * KEY_BYTES} hexadecimal digits", next_step=next_step
        )
    return key
