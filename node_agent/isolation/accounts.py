"""Whose process a job is on this node: the agent's account's, one of a user alone by a uid of a range, or an account.

DATA/uids.json      {"alice": 1900000000, …}: a user's uid stays the user's
"""

from __future__ import annotations

import grp
import json
import os
import pwd
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from gpufleet.v1 import node_pb2

from gpufleet.config.agent_settings import ACCOUNTS, AUTO, OWNER, RANGE, SHARED, IsolationSettings
from gpufleet.devices.device import Device
from gpufleet.errors import GpufleetError, Reason
from gpufleet.host.whole_file import replace_file

from ..core.environment import Account
from ..core.launch import HOME_PATH, Isolation, Refusal, RefusalReason
from ..environment import own_account
from ..keeper.seccomp import why_unfiltered
from .choice import AccountChoice
from .device_nodes import nodes_of
from .limits import Limiting

UIDS_FILE = "uids.json"

RUNS_AS = {
    SHARED: node_pb2.RUNS_AS_SHARED,
    OWNER: node_pb2.RUNS_AS_OWNER,
    RANGE: node_pb2.RUNS_AS_RANGE,
    ACCOUNTS: node_pb2.RUNS_AS_ACCOUNTS,
}
BUILDER = "environments of all"
"""Who makes what all users share has a uid of the range, by a name that no user can have."""
PID_NAMESPACE, SUBREAPER = "pid namespace", "subreaper"
"""By what nothing outlives its job."""

REFUSED, ALLOWED, UNFILTERED = "refused", "allowed", "unfiltered"
"""What becomes of user namespaces of jobs: `unfiltered` where the machine has no filter for system calls."""


class AccountUnusable(Exception):
    """A user's jobs cannot run on this node."""

    def __init__(self, detail: str, reason: RefusalReason = RefusalReason.ACCOUNT_UNUSABLE) -> None:
        super().__init__(detail)
        self.refusal = Refusal(reason, detail)


class Isolating:
    """Answers as whom a user's jobs run. `folder` is the agent's data folder, which no such job sees.

    `chosen` is how; by default as the settings say, and shared where these leave it to the agent.
    """

    def __init__(self, isolation: IsolationSettings, folder: Path, chosen: AccountChoice | None = None) -> None:
        self.isolation = isolation
        self.chosen = chosen or AccountChoice(users=SHARED if isolation.users == AUTO else isolation.users)
        self.own_account = own_account()
        self.uid_first: int | None = None
        """Where its range begins, once it is claimed."""
        self._owner = self.chosen.owner
        self._folder = folder.absolute()
        self._uids: dict[str, int] | None = None
        if self.is_on and os.geteuid() != 0:
            raise GpufleetError(
                Reason.CONFIG_INVALID,
                f"isolation.users: {isolation.users!r} needs an agent that runs as root",
                next_step='Start the agent as root, or leave users = "auto".',
            )

    @property
    def is_on(self) -> bool:
        """Whether jobs run as others than the agent."""
        return self.chosen.users in (RANGE, ACCOUNTS)

    def as_proto(self, limiting: Limiting) -> node_pb2.JobAccounts:
        """What the scheduler is told of it, and within what jobs are kept."""
        chosen = self.chosen
        return node_pb2.JobAccounts(
            runs_as=RUNS_AS[chosen.users],
            owner=chosen.owner,
            account=self.own_account.name,
            is_from_before=chosen.is_from_before,
            why=chosen.why,
            ends_all_by=PID_NAMESPACE if self.is_on else SUBREAPER,
            limits=limiting.held,
            limits_note=limiting.note,
            uid_first=self._first if chosen.users == RANGE else 0,
            uids_note=self._why_moved() if chosen.users == RANGE else "",
            user_namespaces=self._user_namespaces() if self.is_on else "",
        )

    def _user_namespaces(self) -> str:
        return ALLOWED if self.isolation.user_namespaces else UNFILTERED if why_unfiltered() else REFUSED

    @property
    def _first(self) -> int:
        return self.isolation.uid_first if self.uid_first is None else self.uid_first

    def _why_moved(self) -> str:
        """Why its range does not begin as the settings say, a clause for people; empty where it does."""
        if self._first == self.isolation.uid_first:
            return ""
        before = f"{self.isolation.uid_first} to {self._first - 1}"
        return f"another agent of this machine had uids {before} when this one took its own"

    def take_owner(self, user: str) -> None:
        """Know from the scheduler whose jobs alone the node takes; one of before knows nothing of that."""
        self._owner = user or self.chosen.owner

    def of(
        self, user: str, devices: Iterable[Device], files_folder: str, environment: str = ""
    ) -> tuple[Account, Isolation | None]:
        """The account of a job with these devices, and what its process has. Errors: AccountUnusable."""
        if self.chosen.users == OWNER and user != self._owner:
            whose = f"jobs of {self._owner} alone" if self._owner else "nobody's jobs until it knows whose it is"
            raise AccountUnusable(f"this node runs {whose}", RefusalReason.NODE_OF_ANOTHER)
        if not self.is_on:
            return self.own_account, None
        uid, gid, groups, home = self._account(user) if self.chosen.users == ACCOUNTS else self._of_range(user)
        isolation = Isolation(
            uid=uid,
            gid=gid,
            groups=groups,
            home=home,
            files=files_folder,
            devices=nodes_of(devices),
            hidden=(str(self._folder),),
            environment=environment,
            account=user if self.chosen.users == RANGE else "",
            user_namespaces=self.isolation.user_namespaces,
        )
        return Account(name=user, home=home or HOME_PATH), isolation

    def of_builder(self, user: str, files_folder: str, environment: str) -> tuple[Account, Isolation | None]:
        """The account that makes an environment: the user's own, where it is that user's alone, else nobody's.

        Errors: AccountUnusable.
        """
        if user or not self.is_on:
            account, isolation = self.of(user or self._owner, (), files_folder, environment)
        else:
            uid, gid, groups, _ = self._of_range(BUILDER)
            account = Account(name=BUILDER, home=HOME_PATH)
            isolation = Isolation(
                uid=uid,
                gid=gid,
                groups=groups,
                files=files_folder,
                hidden=(str(self._folder),),
                environment=environment,
            )
        return account, None if isolation is None else replace(isolation, makes_environment=True)

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
        for uid in range(self._first, self._first + self.isolation.uid_count):
            if uid not in taken and not _is_known(uid):
                return uid
        raise AccountUnusable(f"all {self.isolation.uid_count} uids of this node are given: raise isolation.uid_count")

    def _read(self) -> dict[str, int]:
        try:
            return read_uids(self._folder)
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


def read_uids(folder: Path) -> dict[str, int]:
    """The uid of each user who was given one. Errors: OSError, ValueError, AttributeError, where it cannot be read."""
    try:
        told = json.loads((folder / UIDS_FILE).read_bytes())
    except FileNotFoundError:
        return {}
    return {str(user): int(uid) for user, uid in told.items()}


def _is_known(uid: int) -> bool:
    """Whether the machine has an account or a group of this number."""
    for look in (pwd.getpwuid, grp.getgrgid):
        try:
            look(uid)
        except KeyError:
            continue
        return True
    return False
