"""What of a person's inputs was under way as the stream to their worker broke."""

from __future__ import annotations

from gpufleet.v1 import inference_pb2, sessions_pb2

from gateway.turn import INPUTS_MAX, STEP_S_MAX, UnderWay


def key(sequence: int, name: str = "a") -> inference_pb2.Input:
    return inference_pb2.Input(sequence=sequence, key=inference_pb2.KeyInput(key=name, is_down=True))


def move(sequence: int) -> inference_pb2.Input:
    return inference_pb2.Input(sequence=sequence, pointer=inference_pb2.PointerInput(x=0.5, y=0.5))


def playing() -> UnderWay:
    """A stream with its first picture."""
    under_way = UnderWay(opened_s=0.0)
    under_way.shown(0)
    return under_way


def broken(under_way: UnderWay, at_s: float = 1.0, *, place_key: str = "mine") -> sessions_pb2.StepBroken | None:
    return under_way.broken(3, place_key, at_s)


def digest(under_way: UnderWay, place_key: str = "mine") -> str:
    said = broken(under_way, place_key=place_key)
    assert said is not None
    return said.input_digest


def test_to_be_there_is_nothing_under_way() -> None:
    assert broken(UnderWay()) is None, "no worker has opened it"
    under_way = playing()
    assert broken(under_way) is None
    under_way.sent(key(1), 0.1)
    under_way.sent(move(2), 0.2)
    under_way.shown(2)
    assert broken(under_way) is None


def test_an_input_without_a_frame_is_under_way_as_long_as_a_step_may_take() -> None:
    under_way = playing()
    under_way.sent(key(1), 5.0)
    assert broken(under_way, 5.0 + STEP_S_MAX) is not None
    assert broken(under_way, 5.1 + STEP_S_MAX) is None


def test_a_session_without_its_first_frame_is_being_opened() -> None:
    said = broken(UnderWay(opened_s=0.0))
    assert said is not None and (said.epoch, said.input_digest, said.has_frame) == (3, "", False)
    assert broken(UnderWay(opened_s=0.0), 1.0 + STEP_S_MAX) is None


def test_the_digest_is_that_of_the_first_input_that_was_done_and_of_no_move() -> None:
    under_way = playing()
    under_way.sent(move(1), 0.1)
    assert digest(under_way) == ""
    under_way.sent(key(2, "x"), 0.2)
    under_way.sent(key(3, "y"), 0.3)
    other = playing()
    other.sent(key(8, "x"), 0.4)
    assert digest(under_way) == digest(other) != ""
    assert len(digest(other)) == 16
    assert digest(other, "yours") != digest(other), "who does not know the place's key learns nothing"
    assert digest(other, "") == ""
    other.shown(8)
    other.sent(key(9, "y"), 0.5)
    assert digest(other) != digest(under_way)


def test_inputs_that_no_frame_ever_shows_are_bounded() -> None:
    under_way = playing()
    for sequence in range(1, 3 * INPUTS_MAX):
        under_way.sent(key(sequence), 0.0)
    assert len(under_way._inputs) == INPUTS_MAX
