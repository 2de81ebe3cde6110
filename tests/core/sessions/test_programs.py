"""Workers by hand and gateways join: by what token, under what name, and how often."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.core.decide import step
from scheduler.state.access import FORMER_GOOD_FOR, Role, Token
from scheduler.state.events import ProgramAnnounced, RevokeRequested, TokenRequested
from scheduler.state.ids import TokenId, UserName
from scheduler.state.replies import CredentialGiven, Refused
from scheduler.state.units import after
from tests.core.fleet import Fleet

JOINING, ANN = TokenId("joining"), UserName("ann")


def fleet_with(fleet: Fleet | None = None, **fields: Any) -> Fleet:
    fleet = fleet or Fleet()
    given = {"role": Role.GATEWAY, "uses_max": 2, **fields}
    token = Token(id=JOINING, user=ANN, digest="d", created_at=fleet.now, **given)
    fleet.take_up(TokenRequested(at=fleet.now, by=ANN, token=token))
    return fleet


def announced(fleet: Fleet, by: TokenId, name: str, digest: str, model: str = "") -> ProgramAnnounced:
    return ProgramAnnounced(at=fleet.now, by=by, name=name, digest=digest, fresh=TokenId(f"of-{digest}"), model=model)


def joins(fleet: Fleet, name: str, digest: str, model: str = "", by: TokenId = JOINING) -> Token:
    reply = fleet.take_up(announced(fleet, by, name, digest, model)).reply
    assert isinstance(reply, CredentialGiven), reply
    return fleet.state.durable.tokens[reply.token.id]


def joins_as(name: str, fleet: Fleet) -> TokenId:
    return joins(fleet_with(fleet), name, f"digest of {name}").id


def refused(fleet: Fleet, name: str, digest: str, model: str = "", by: TokenId = JOINING) -> str:
    decision = step(fleet.state, announced(fleet, by, name, digest, model))
    assert isinstance(decision.reply, Refused) and not decision.records
    return decision.reply.reason


def test_a_token_is_traded_once_a_program_and_asked_again_the_same_is_answered() -> None:
    fleet = fleet_with()
    credential = joins(fleet, "g1", "a")
    assert (credential.role, credential.user, credential.program, credential.is_traded) == (
        Role.GATEWAY,
        ANN,
        "g1",
        False,
    )
    assert joins(fleet, "g1", "a") == credential
    assert fleet.state.durable.tokens[JOINING].uses == 1
    joins(fleet, "g2", "b")
    assert refused(fleet, "g3", "c") == "TOKEN_USED_UP"
    assert joins(fleet, "g1", "a") == credential, "it asks again, and is no other"


def test_a_name_is_one_programs_also_when_its_credential_was_revoked() -> None:
    fleet = fleet_with()
    credential = joins(fleet, "g1", "a")
    assert refused(fleet, "g1", "other") == "TOKEN_NAME_TAKEN"
    assert refused(fleet, "g2", "a") == "CONFLICT", "its digest is another's credential"
    fleet.take_up(RevokeRequested(at=fleet.now, by=ANN, token=credential.id))
    assert refused(fleet, "g1", "a") == "CONFLICT", "what was revoked stays useless"
    assert refused(fleet, "g1", "new") == "TOKEN_NAME_TAKEN"


def test_a_worker_joins_for_models_of_its_token_and_its_credential_is_for_one() -> None:
    fleet = fleet_with(role=Role.WORKER, models="paint-*")
    assert refused(fleet, "w1", "a", "write") == "PERMISSION_DENIED"
    credential = joins(fleet, "w1", "a", "paint-1")
    assert credential.models == "paint-1"
    assert refused(fleet, "w1", "b", "paint-2", by=credential.id) == "PERMISSION_DENIED"
    assert refused(fleet, "w2", "b", "paint-1", by=credential.id) == "PERMISSION_DENIED"


def test_a_renewed_credential_is_another_and_the_one_before_is_good_for_a_while() -> None:
    fleet = fleet_with()
    credential = joins(fleet, "g1", "a")
    renewed = joins(fleet, "g1", "b", by=credential.id)
    assert (renewed.id, renewed.digest, renewed.former_digest) == (credential.id, "b", "a")
    assert joins(fleet, "g1", "b", by=credential.id) == renewed
    assert renewed.former_is_good(fleet.now)
    assert not renewed.former_is_good(after(fleet.now, FORMER_GOOD_FOR))
    assert refused(fleet, "g1", "d", by=credential.id) == "CONFLICT", "the digest of a token that is there"
    assert fleet.state.durable.tokens[JOINING].uses == 1


@pytest.mark.parametrize(
    ("role", "uses_max", "is_traded"), [(Role.WORKER, 1, True), (Role.WORKER, 0, False), (Role.NODE, 1, False)]
)
def test_a_token_with_a_number_of_uses_is_traded(role: Role, uses_max: int, is_traded: bool) -> None:
    fleet = fleet_with(role=role, uses_max=uses_max)
    assert fleet.state.durable.tokens[JOINING].is_traded is is_traded
