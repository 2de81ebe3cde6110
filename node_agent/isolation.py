"""Whose process a job is on this node: the agent's account's, one of a user alone by a uid of a range, or an account.

DATA/uids.json      {"alice": 1900000000, …}: a user's uid stays the user's
"""

from __future__ import annotations

import grp
import json
import os
import pwd
from collections.abc import Iterable
from pathlib import Path

from gpufleet.config.agent_settings import ACCOUNTS, SHARED, IsolationSettings
from gpufleet.devices.device import Device
from gpufleet.errors import GpufleetError, Reason
from gpufleet.host.whole_file import replace_file

from .core.environment import Account
from .core.launch import HOME_PATH, Isolation, Refusal, RefusalReason
from .device_nodes import nodes_of
from .environment import own_account

UIDS_FILE = "uids.json"


class AccountUnusable(Exception):
    """A user's jobs cannot run on this node."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.refusal = Refusal(RefusalReason.ACCOUNT_UNUSABLE, detail)


class Isolating:
    """Answers as whom a user's jobs run. `folder` is the agent's data folder, which no such job sees."""

    def __init__(self, isolation: IsolationSettings, folder: Path) -> None:
        self.isolation = isolation
        self._folder = folder.absolute()
        self._own = own_account()
        self._uids: dict[str, int] | None = None
        if self.is_on and os.geteuid() != 0:
            raise GpufleetError(
                Reason.CONFIG_INVALID,
                f"isolation.users: {isolation.users!r} needs an agent that runs as root",
                next_step='Start the agent as root, or leave users = "shared".',
            )

    @property
    def is_on(self) -> bool:
        """Whether jobs run as others than the agent."""
        return self.isolation.users != SHARED

    def of(self, user: str, devices: Iterable[Device], files_folder: str) -> tuple[Account, Isolation | None]:
        """The account of a job with these devices, and what its process has. Errors: AccountUnusable."""
        if not self.is_on:
            return self._own, None
        uid, gid, groups, home = self._account(user) if self.isolation.users == ACCOUNTS else self._of_range(user)
        isolation = Isolation(
            uid=uid,
            gid=gid,
            groups=groups,
            home=home,
            files=files_folder,
            devices=nodes_of(devices),
            hidden=(str(self._folder),),
        )
        return Account(name=user, home=home or HOME_PATH), isolation

    def _account(self, user: str) -> tuple[int, int, tuple[int, ...], str]:
        try:
            entry = pwd.getpwnam(user)
        except (KeyError, ValueError):
            raise AccountUnusable(f"this node has no account {user[:80]!r}, and runs jobs as their users'") from None
        if entry.pw_uid == 0 and not self.isolation.allow_root:
            raise AccountUnusable("jobs do not run as root on this node: isolation.allow_root in its agent.toml")
        groups = os.getgrouplist(user, entry.pw_gid)
        return entry.pw_uid, entry.pw_gid, tuple(sorted({*groups} - {entry.pw_gid})), entry.pw_dir

    def _of_range(self, user: str) -> tuple[int, int, tuple[int, ...], str]:
        if self._uids is None:
            self._uids = self._read()
        uid = self._uids.get(user)
        if uid is None:
            uid = self._free(set(self._uids.values()))
            self._write({**self._uids, user: uid})
            self._uids[user] = uid
        return uid, uid, (), ""

    def _free(self, taken: set[int]) -> int:
        first = self.isolation.uid_first
        for uid in range(first, first + self.isolation.uid_count):
            if uid not in taken and not _is_known(uid):
                return uid
        raise AccountUnusable(f"all {self.isolation.uid_count} uids of this node are given: raise isolation.uid_count")

    def _read(self) -> dict[str, int]:
        try:
            told = json.loads((self._folder / UIDS_FILE).read_bytes())
            return {str(user): int(uid) for user, uid in told.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError) as problem:
            # Given anew, a uid would give one user what another one has left.
            raise AccountUnusable(f"{self._folder / UIDS_FILE} cannot be read: {problem}") from None

    def _write(self, uids: dict[str, int]) -> None:
        """Keep it before it is used: after a crash of the machine a user has the same uid."""
        path = self._folder / UIDS_FILE
        try:
            replace_file(path, json.dumps(uids).encode())
        except OSError as problem:
            raise AccountUnusable(f"{path} cannot be written: {problem.strerror}") from None


def _is_known(uid: int) -> bool:
    """Whether the machine has an account or a group of this number."""
    for look in (pwd.getpwuid, grp.getgrgid):
        try:
            look(uid)
        except KeyError:
            continue
        return True
    return False
