"""What the agent proves itself by: the credential of its node, once it has one, else a token with which nodes join."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from gpufleet.security.tokens import read_token_file, write_token_file

_log = logging.getLogger(__name__)

CREDENTIAL_FILE = "credential.token"


class Credential:
    """The credential in the agent's data folder. `joining` reads the token that it is given for."""

    def __init__(self, folder: Path, joining: Callable[[], str | None]) -> None:
        self._file = folder / CREDENTIAL_FILE
        self._joining = joining
        self._is_doubtful = False

    def token(self) -> str | None:
        """What to send now. Raises TOKEN_FILE_EXPOSED and what `joining` raises."""
        if not self._file.exists():
            return self._joining()
        if self._is_doubtful and (joining := self._joining()) is not None:
            return joining
        return read_token_file(self._file)

    def keep(self, token: str) -> None:
        """Keep what the scheduler gave, on the disk before its first use."""
        write_token_file(self._file, token)
        self._is_doubtful = False

    def unknown(self) -> None:
        """The scheduler does not know what was sent: next time it is the other of the two.

        The file stays: a scheduler that was asked by mistake must not cost the node its credential.
        """
        if self._file.exists():
            self._is_doubtful = not self._is_doubtful
            _log.warning("the scheduler does not know the %s", "credential" if self._is_doubtful else "token")
