"""What a gateway holds of bodies: by caller, of strangers, and of all; each byte is let go of once."""

from __future__ import annotations

import pytest

from gateway.proxy import held_bodies
from gateway.proxy.held_bodies import PIECE_BYTES, HeldBodies
from gpufleet.errors import GpufleetError, Reason


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("BODY_BYTES_MAX", 100), ("CALLER_BYTES_MAX", 150), ("IN_ALL_BYTES_MAX", 300)):
        monkeypatch.setattr(held_bodies, name, size)
    monkeypatch.setattr(held_bodies, "STRANGERS_BYTES_MAX", 120)


def refused(bodies: HeldBodies, caller: str, size: int, *, is_known: bool) -> Reason | None:
    """Why so much of somebody's is not held, which it is only for a moment."""
    with bodies.hold(caller, is_known=is_known) as body:
        try:
            body.add(b"x" * size)
        except GpufleetError as error:
            return error.reason
    return None


def test_strangers_leave_room_for_people_who_are_known() -> None:
    bodies = HeldBodies()
    with bodies.hold("address 1", is_known=False) as one, bodies.hold("user ann", is_known=True) as ann:
        one.add(b"x" * 100)
        assert refused(bodies, "address 2", 30, is_known=False) is Reason.TOO_MANY_STREAMS
        assert refused(bodies, "user bob", 30, is_known=True) is None
        ann.add(b"x" * 60)
        ann.add(b"x" * 40)
        assert refused(bodies, "user ann", 60, is_known=True) is Reason.QUOTA_EXCEEDED
        assert refused(bodies, "user bob", 101, is_known=True) is Reason.MESSAGE_TOO_LARGE
        with bodies.hold("user bob", is_known=True) as bob:
            bob.add(b"x" * 90)
            assert refused(bodies, "user cid", 20, is_known=True) is Reason.TOO_MANY_STREAMS
            assert bodies.in_all == 290
    assert bodies.in_all == 0
    assert refused(bodies, "address 2", 100, is_known=False) is None


def test_a_body_is_given_in_pieces_and_let_go_of_with_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BODY_BYTES_MAX", "CALLER_BYTES_MAX", "IN_ALL_BYTES_MAX"):
        monkeypatch.setattr(held_bodies, name, 10 * PIECE_BYTES)
    bodies, said = HeldBodies(), bytes(range(256)) * (PIECE_BYTES // 128 + 1)
    with bodies.hold("user ann", is_known=True) as body:
        body.add(said[:1_000])
        body.add(said[1_000:])
        assert body.whole() == said
        pieces = list(body.pieces())
        assert b"".join(pieces) == said and max(map(len, pieces)) == PIECE_BYTES
        assert bodies.in_all == 0
        body.release()
    assert bodies.in_all == 0
