"""How a node runs users' jobs, by what its settings say and what its agent can. Rule: docs/rules/jobs.md 4.37."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpufleet.config.agent_settings import ACCOUNTS, AUTO, OWNER, RANGE, SHARED


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountChoice:
    """As whom jobs run: SHARED, OWNER, RANGE or ACCOUNTS.

    `owner` is whose alone are taken, where somebody said so. `is_from_before`: nobody chose, and the agent was there
    before there was a choice. `why` says why it does not keep users apart, in a clause; empty where somebody chose so.
    """

    users: str
    owner: str = ""
    is_from_before: bool = False
    why: str = ""


def chosen_accounts(users: str, owner: str, *, is_from_before: bool, why_not_apart: Callable[[], str]) -> AccountChoice:
    """What the setting comes to. `why_not_apart` answers why the agent cannot keep users apart, empty where it can.

    An agent of before goes on as it did until somebody says as whom jobs run, or names the owner: an upgrade takes no
    node from its users.
    """
    if users not in (AUTO, OWNER):
        return AccountChoice(users=users)
    if is_from_before and not owner:
        return AccountChoice(users=SHARED, is_from_before=True)
    if users == OWNER:
        return AccountChoice(users=OWNER, owner=owner)
    why = why_not_apart()
    return AccountChoice(users=OWNER, owner=owner, why=why) if why else AccountChoice(users=RANGE)


def sentence_of(chosen: AccountChoice, account: str) -> str:
    """How jobs run, for the agent's log."""
    match chosen.users:
        case _ if chosen.is_from_before:
            return (
                f"jobs of all users run as {account}, as they did before there was a choice: each can read, change "
                "and end whatever that account can. Say --shared-account where that is meant, --owner USER to take "
                "that user's alone, or, as root, --isolation range to keep users apart"
            )
        case value if value == SHARED:
            return f"jobs of all users run as {account}: each can read, change and end whatever that account can"
        case value if value == OWNER:
            whose = f"of {chosen.owner}" if chosen.owner else "of this node's owner"
            return f"jobs {whose} alone run here, as {account}{f': {chosen.why}' if chosen.why else ''}"
        case value if value == ACCOUNTS:
            return "each user's jobs run as the account of that name, kept apart"
        case _:
            return "each user's jobs run as a uid of their own, kept apart"
