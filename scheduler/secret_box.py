"""Seals the values of secrets with a key beside the database, and opens them when a launch leaves.

A value is sealed by AES-256-GCM for its user and name alone: put under another name, or in another user's place, it
does not open. So the database, and a copy of it, tell nothing without the key, and the key nothing without the
database. What does it is the package `cryptography`, which a scheduler without secrets does without.
"""

import hashlib
import logging
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpufleet.errors import GpufleetError, Reason
from gpufleet.jobs.variables import IMAGE_CREDENTIALS

from .key_files import KEY_BYTES, read_key, read_or_make_key
from .state.access import Secret
from .state.commands import LaunchAttempt
from .state.ids import SecretKey, SecretName, UserName

log = logging.getLogger(__name__)

KEY_FILE = "secrets.key"
NONCE_BYTES = 12
KEY_ID_BYTES = 8
VERSION = b"\x01"
HEAD_BYTES = len(VERSION) + KEY_ID_BYTES + NONCE_BYTES

INSTALL = "An admin installs it where the scheduler is, and starts that again: pip install 'gpufleet[secrets]'"
RESTORE = (
    "An admin puts the file back and starts the scheduler again; where it is lost, so are the values: each is removed, "
    "and set anew, with gpuctl secret rm and gpuctl secret set."
)


class SecretBox:
    """Seals and opens. The key is read at its first use, and made where nothing was ever sealed."""

    def __init__(self, key_file: Path) -> None:
        self._file = key_file
        self._key: bytes | None = None

    def check(self, stored: Iterable[Secret]) -> None:
        """Say in the log, at the start, why the secrets that there are cannot be opened, if so."""
        secret = next(iter(stored), None)
        if secret is not None:
            try:
                self.open(secret)
            except GpufleetError as problem:
                log.error("jobs that name secrets will fail: %s. %s", problem.message, problem.next_step)

    def seal(self, user: UserName, name: SecretName, value: str, *, is_first: bool) -> bytes:
        """A value, sealed. `is_first`: nothing is stored that was sealed. Errors: SECRETS_UNAVAILABLE."""
        cipher, key_id = self._cipher(may_make=is_first)
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed: bytes = cipher.encrypt(nonce, value.encode(), _bound_to(user, name))
        return VERSION + key_id + nonce + sealed

    def open(self, secret: Secret) -> str:
        """The value of a secret. Errors: SECRETS_UNAVAILABLE."""
        cipher, key_id = self._cipher()
        sealed = secret.sealed
        if sealed[: len(VERSION)] != VERSION or sealed[len(VERSION) : len(VERSION) + KEY_ID_BYTES] != key_id:
            raise _unavailable(f"secret {secret.name} of {secret.user} was sealed with another key than {self._file}")
        nonce, rest = sealed[HEAD_BYTES - NONCE_BYTES : HEAD_BYTES], sealed[HEAD_BYTES:]
        from cryptography.exceptions import InvalidTag

        try:
            value: bytes = cipher.decrypt(nonce, rest, _bound_to(secret.user, secret.name))
        except (InvalidTag, ValueError):  # the latter for what was cut
            why = f"what is stored of secret {secret.name} of {secret.user} was changed"
            raise _unavailable(why, "Its owner sets it anew: gpuctl secret set NAME") from None
        return value.decode()

    def environment(self, launch: LaunchAttempt, stored: Mapping[SecretKey, Secret]) -> dict[str, str]:
        """The variables of a launch that hold secrets of its job's owner, with their values as they are now; that of
        its image by the name IMAGE_CREDENTIALS.

        Errors: SECRET_NOT_FOUND for one that is gone, SECRETS_UNAVAILABLE.
        """
        found: dict[str, str] = {}
        container = launch.spec.container
        of_image = ((IMAGE_CREDENTIALS, container.image_secret),) if container and container.image_secret else ()
        for variable, name in (*launch.spec.secrets, *of_image):
            secret = stored.get((launch.user, name))
            if secret is None:
                raise GpufleetError(Reason.SECRET_NOT_FOUND, f"{launch.user} has no secret {name!r} any more")
            found[variable] = self.open(secret)
        return found

    def _cipher(self, *, may_make: bool = False) -> tuple[Any, bytes]:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise _unavailable("the scheduler lacks the package cryptography", INSTALL) from None
        if self._key is None:
            try:
                key = read_or_make_key(self._file, RESTORE) if may_make else read_key(self._file, RESTORE)
            except GpufleetError as problem:
                step = problem.next_step if problem.reason is Reason.TOKEN_FILE_EXPOSED else RESTORE
                raise _unavailable(problem.message, step) from None
            self._key = key
        assert len(self._key) == KEY_BYTES
        return AESGCM(self._key), hashlib.sha256(b"gpufleet secret key id\0" + self._key).digest()[:KEY_ID_BYTES]


def _bound_to(user: UserName, name: SecretName) -> bytes:
    """What a value is sealed for, and is of no use elsewhere. Neither holds a NUL."""
    return f"gpufleet secret\0{user}\0{name}".encode()


def _unavailable(why: str, next_step: str = RESTORE) -> GpufleetError:
    return GpufleetError(Reason.SECRETS_UNAVAILABLE, why, next_step=next_step)
