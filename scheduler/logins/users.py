"""The file of users as it is now: read again when it has changed, without a signal and without a restart."""

import logging
from collections.abc import Mapping
from pathlib import Path

from gpufleet.errors import GpufleetError
from gpufleet.security.users_file import FileUser, read_users
from gpufleet.telemetry.logs import fields

log = logging.getLogger(__name__)


class Users:
    """Those of one file, which must be there and right when the scheduler starts. Errors: those of `read_users`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version = self._version_now()
        self._users = read_users(path)

    def now(self) -> Mapping[str, FileUser]:
        """The users by name. A file that is broken now, or gone, changes nothing, and is told in the log once."""
        version = self._version_now()
        if version != self._version:
            self._version = version
            try:
                self._users = read_users(self._path)
                log.info("the file of users was read again", extra=fields(users=len(self._users)))
            except GpufleetError as problem:
                log.error("the users stay as they were: %s", problem.message)
        return self._users

    def _version_now(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
