"""A decision is a value: what becomes true, who is told, and what the asker is answered."""

from dataclasses import dataclass

from ..state.commands import Command
from ..state.records import Record
from ..state.replies import Done, Refused, Reply
from ..state.sessions.commands import SessionCommand
from ..state.sessions.turns import Note


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Records to apply and store, commands that leave once they are stored, and the reply to the asker.

    `notes` change what is known only while the scheduler runs, and are not stored.
    """

    records: tuple[Record, ...] = ()
    commands: tuple[Command, ...] = ()
    session_commands: tuple[SessionCommand, ...] = ()
    notes: tuple[Note, ...] = ()
    reply: Reply = Done()


NOTHING = Decision()


def refused(reason: str, message: str, *, field: str = "", next_step: str = "") -> Decision:
    """A decision that changes nothing and says why."""
    return Decision(reply=Refused(reason=reason, message=message, field=field, next_step=next_step))


def together(*decisions: Decision) -> Decision:
    """Several decisions as one; the reply is that of the last."""
    return Decision(
        records=tuple(record for each in decisions for record in each.records),
        commands=tuple(command for each in decisions for command in each.commands),
        session_commands=tuple(command for each in decisions for command in each.session_commands),
        notes=tuple(note for each in decisions for note in each.notes),
        reply=decisions[-1].reply if decisions else Done(),
    )
