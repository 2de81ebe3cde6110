"""What a caller sees of somebody else's jobs and models: the one place where that is decided, and carried out.

Whose job it is, its name, its state and what it holds everybody sees: it is what the queue is for.
"""

from dataclasses import dataclass
from typing import Self

from gpufleet.v1 import job_pb2

from ..state.access import Role
from ..state.ids import UserName
from .roles import caller

HIDDEN = "<hidden>"
"""What stands in the place of a text that the caller may not see."""


@dataclass(frozen=True, slots=True)
class Sight:
    """Whose jobs and models a caller sees the whole of: those of `owner`; of everybody where they are an admin."""

    owner: UserName | None
    is_admin: bool

    @classmethod
    def of_caller(cls) -> Self:
        """That of who makes the call that is being served. A viewer owns nothing, whatever its user is called."""
        who = caller()
        return cls(who.user if who.role in (Role.USER, Role.JOB) else None, who.is_admin)

    def is_whole(self, owner: UserName) -> bool:
        """Whether nothing of what belongs to this owner is hidden."""
        return self.is_admin or owner == self.owner

    def hide(self, spec: job_pb2.JobSpec, owner: UserName) -> None:
        """Take out of a message what the caller may not see: values of variables, and where the job tells of itself.

        The address that is told may hold a password, as those of chat programs do.
        """
        if self.is_whole(owner):
            return
        if spec.env:
            for name in list(spec.env):
                spec.env[name] = HIDDEN
            spec.hidden_fields.append("env")
        if spec.notify:
            spec.notify = HIDDEN
            spec.hidden_fields.append("notify")
