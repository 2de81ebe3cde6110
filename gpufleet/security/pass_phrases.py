"""Pass phrases of models: kept as a salted slow hash, made where the phrase enters, and compared in constant time."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import unicodedata
from pathlib import Path

from gpufleet.errors import GpufleetError, Reason, invalid

CHARS_MIN, CHARS_MAX = 8, 200
"""Length of a pass phrase, in characters."""

COST, BLOCK, PARALLEL = 16_384, 8, 5
"""Of scrypt: some 0.2 s and 16 MiB a hash. They stand in each hash; only these are taken."""

SALT_BYTES, HASH_BYTES = 16, 32
MEMORY_BYTES_MAX = 64 * 1024 * 1024
FILE_BYTES_MAX = 10_000

HASH = re.compile(rf"scrypt\${COST}\${BLOCK}\${PARALLEL}\$([\w-]{{22}})\$([\w-]{{43}})", re.ASCII)


def hash_pass_phrase(phrase: str) -> str:
    """The hash of a pass phrase, with a salt of its own: "scrypt$16384$8$5$SALT$HASH"."""
    salt = secrets.token_bytes(SALT_BYTES)
    return f"scrypt${COST}${BLOCK}${PARALLEL}${_text(salt)}${_text(_hashed(phrase, salt))}"


def is_hash(text: str) -> bool:
    """Whether this is a hash as `hash_pass_phrase` makes them."""
    return HASH.fullmatch(text) is not None


def is_pass_phrase(phrase: str, stored: str) -> bool:
    """Whether a hash is that of this pass phrase. Takes as long as making one: call it on a thread."""
    found = HASH.fullmatch(stored)
    if found is None:
        return False
    salt, wanted = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in found.groups())
    return hmac.compare_digest(_hashed(phrase, salt), wanted)


def read_pass_phrase(path: str) -> str:
    """The pass phrase in a file: its one line. Raises FILE_NOT_FOUND and INVALID_ARGUMENT; tells nothing of it."""
    option, form = "--pass-phrase-file", f"Write one line of {CHARS_MIN} to {CHARS_MAX} characters into it."
    try:
        with Path(path).expanduser().open("rb") as file:
            content = file.read(FILE_BYTES_MAX)
    except OSError as problem:
        raise GpufleetError(Reason.FILE_NOT_FOUND, f"{option}: {path} cannot be read: {problem.strerror}") from None
    try:
        phrase = content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise invalid(option, f"{path} is no text in UTF-8", next_step=form) from None
    if not CHARS_MIN <= len(phrase) <= CHARS_MAX or not phrase.isprintable() or phrase != phrase.strip():
        raise invalid(option, f"{path} holds no pass phrase", next_step=f"{form} No space at its ends.")
    return phrase


def _hashed(phrase: str, salt: bytes) -> bytes:
    # What looks alike is typed as other code points on other machines.
    said = unicodedata.normalize("NFC", phrase).encode("utf-8", "surrogatepass")
    return hashlib.scrypt(said, salt=salt, n=COST, r=BLOCK, p=PARALLEL, maxmem=MEMORY_BYTES_MAX, dklen=HASH_BYTES)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
