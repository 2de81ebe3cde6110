"""What a caller sees of somebody else's jobs and models: the one place where it is decided, and carried out.

Whose job it is, its name, its group, its state, how it ended and what it holds everybody sees: the queue is for that.
Values of variables, and whom a job tells, nobody else sees. The rest is as `[privacy] output` says, what a group has
and may have among it: that is its members' as what a job writes is its owner's.
"""

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Self, cast

from google.protobuf.message import Message
from gpufleet.v1 import job_pb2, sessions_pb2

from gpufleet.errors import GpufleetError, Reason

from ..policy.groups.caps import GROUP_CAP, GROUP_HOURS
from ..state.access import Role
from ..state.groups.group import NO_GROUP, GroupId, UserGroups
from ..state.ids import JobId, UserName
from .roles import caller
from .server_facts import ServerFacts

HIDDEN = "<hidden>"
"""What stands in the place of a text that the caller may not see."""

SECRET = ("env", "notify", "secrets")
"""Fields of a job's spec that its owner and admins alone see. A variable may be a token; so may the address that is
told, as those of chat programs are."""

PRIVATE = (
    *("argv", "cpu_argv", "output_file", "files", "folder", "results", "inputs", "keep", "environment", "container"),
)
"""Fields that others see where output is shared. Each other field of a spec everybody sees."""

PRIVATE_CAPS = {
    GROUP_CAP: "its group holds as many GPUs as it may hold at once",
    GROUP_HOURS: "its group has used its GPU-hours of the week",
}
"""What others are told, where output is private, of a job that a cap of its group keeps back: no number and no name."""


@dataclass(frozen=True, slots=True)
class Sight:
    """Whose jobs and models a caller sees the whole of: those of `owner`; of everybody where they are an admin.

    Of others they see what jobs write and how they run where that is `shared`.
    """

    owner: UserName | None
    is_admin: bool
    is_shared: bool

    @classmethod
    def of_caller(cls, facts: ServerFacts) -> Self:
        """That of who makes the call that is being served. A viewer owns nothing, whoever its token's user is."""
        who = caller()
        return cls(
            owner=who.user if who.role in (Role.USER, Role.JOB) else None,
            is_admin=who.is_admin,
            is_shared=facts.output_is_shared(),
        )

    def is_whole(self, owner: UserName) -> bool:
        """Whether nothing of what belongs to this owner is hidden."""
        return self.is_admin or owner == self.owner

    def reads(self, owner: UserName) -> bool:
        """Whether what jobs of this owner write, and how they run, is for this caller."""
        return self.is_shared or self.is_whole(owner)

    def sees_group(self, groups: UserGroups, group_id: GroupId) -> bool:
        """Whether what a group has, who of it has it, and its caps are for this caller."""
        if self.is_shared or self.is_admin or self.owner is None or group_id == NO_GROUP:
            return True
        group = groups.live(group_id)
        return group is not None and group.has(self.owner)

    def hide_caps(
        self,
        groups: UserGroups,
        group_id: GroupId,
        reason: job_pb2.WaitReason,
        shown: job_pb2.Job | job_pb2.Explanation,
    ) -> None:
        """Take numbers and names of a job's group out of why it waits, and out of why there is no bound."""
        if self.sees_group(groups, group_id):
            return
        told = PRIVATE_CAPS.get(reason.reason)
        if told is not None:
            reason.sentence = told
        if f"group {groups.name_of(group_id)} " in shown.bound_sentence:
            shown.bound_sentence = f"no bound: {told or 'it waits for what its group may have'}"

    def check_reads(self, job: JobId, owner: UserName) -> None:
        """Before anything of that is answered. Errors: OUTPUT_PRIVATE."""
        if not self.reads(owner):
            raise GpufleetError(
                Reason.OUTPUT_PRIVATE,
                f"job {job} belongs to {owner}, and here only its owner and admins read what it does",
                next_step=f'ask {owner}, or an admin; [privacy] output = "owner" in scheduler.toml says so',
            )

    def hide(self, spec: job_pb2.JobSpec, owner: UserName) -> None:
        """Take out of a message what the caller may not see, and name it in `hidden_fields`."""
        if self.is_whole(owner):
            return
        for name in SECRET if self.is_shared else (*SECRET, *PRIVATE):
            _hide(spec, name)

    def hide_of_model(self, model: sessions_pb2.Model) -> None:
        """The same for a model, its worker and its arguments."""
        owner = UserName(model.owner)
        if model.HasField("worker"):
            self.hide(model.worker, owner)
        if self.reads(owner):
            return
        for worker in model.workers:
            if worker.wait_reason in PRIVATE_CAPS:
                worker.message = f"waits: {PRIVATE_CAPS[worker.wait_reason]}"
        for name in list(model.arguments):
            model.arguments[name] = HIDDEN
        if model.http.argv:
            del model.http.argv[:]
            model.http.argv.append(HIDDEN)

    def hide_of_session(self, session: sessions_pb2.Session, owner: UserName) -> sessions_pb2.Session:
        """What is left of a session of a model of this owner: that there is one, and its place."""
        if self.reads(owner):
            return session
        return sessions_pb2.Session(id=session.id, model=session.model, state=session.state, place=session.place)


def _hide(spec: job_pb2.JobSpec, name: str) -> None:
    """Take one field out of a spec that has it: of a map the values, of a list or a message all that it holds."""
    value, whole = getattr(spec, name), cast(Message, spec)
    if not value or (isinstance(value, Message) and not whole.HasField(name)):
        return
    if isinstance(value, Message):
        whole.ClearField(name)
    elif isinstance(value, str):
        setattr(spec, name, HIDDEN)
    elif isinstance(value, MutableMapping):
        for key in list(value):
            value[key] = HIDDEN
    else:
        is_text = isinstance(value[0], str)
        del value[:]
        if is_text:
            value.append(HIDDEN)
    spec.hidden_fields.append(name)
