"""What becomes of items, in a world without sockets: one answer or one error each, whatever the workers do."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.client.core.outcomes import Answer, Backend, Break, ErrorKind, Failure, Reply
from gpufleet.client.core.workers import Condition, Health
from tests.client.world import RULES, Behaviour, FakeWorker, World, answers, fails, in_turn

GPU, CPU, CALLABLE = Backend.GPU, Backend.CPU, Backend.CALLABLE
DOWN = Health(Condition.UNREACHABLE, "refused")


def too_few(items: tuple[int, ...]) -> Reply:
    return Reply(tuple(Answer(item) for item in items[:-1]))


def bad_item(bad: int, kind: ErrorKind) -> Behaviour:
    """The whole request fails as long as a certain item is in it."""
    return lambda items: Failure(kind, "scripted") if bad in items else answers(items)


def item_error(bad: int, kind: ErrorKind) -> Behaviour:
    """A certain item has an error of its own."""
    return lambda items: Reply(tuple(Failure(kind, "scripted") if each == bad else Answer(each) for each in items))


def test_items_are_answered_in_their_order_by_both_workers() -> None:
    world = World({"a": FakeWorker(answers), "b": FakeWorker(answers)})
    results = world.predict(30)
    assert [result.value for result in results] == list(range(30))
    assert {asked.worker for asked in world.asked} == {"a", "b"}
    assert all(len(asked.items) <= RULES.batch_size for asked in world.asked)
    assert all(result.attempts == 1 and result.backend is GPU and not result.is_fallback for result in results)


def test_no_items_are_answered_at_once() -> None:
    assert World({"a": FakeWorker(answers)}).predict(0) == ()


def test_only_items_of_one_kind_that_lie_side_by_side_share_a_request() -> None:
    world = World({"a": FakeWorker(answers)})
    world.predict(["x", "x", "y", "x", "x", "x", "x", "x"])
    assert sorted(asked.items for asked in world.asked) == [(0, 1), (2,), (3, 4, 5, 6), (7,)]


def test_an_item_that_cannot_be_sent_costs_itself_alone() -> None:
    failure = Failure(ErrorKind.REJECTED, "a set")
    results = World({"a": FakeWorker(answers)}).predict(["x", failure, "x"])
    assert [result.is_ok for result in results] == [True, False, True]
    assert results[1].attempts == 0 and results[1].error == failure.as_error()


@pytest.mark.parametrize("kind", [ErrorKind.REJECTED, ErrorKind.MODEL_FAILED, ErrorKind.BAD_ANSWER, ErrorKind.BROKEN])
def test_an_item_that_fails_its_batch_is_found_and_the_others_are_answered(kind: ErrorKind) -> None:
    world = World({"a": FakeWorker(bad_item(2, kind)), "b": FakeWorker(bad_item(2, kind))})
    results = world.predict(8)
    assert [result.index for result in results if not result.is_ok] == [2]
    assert results[2].error is not None and results[2].error.kind is kind
    # Rejected for good, it was asked in its batch and alone; broken for a moment, as often as retries allow.
    assert results[2].attempts == (2 if kind is not ErrorKind.BROKEN else 1 + RULES.retries)


@pytest.mark.parametrize("kind", [ErrorKind.DENIED, ErrorKind.NOT_FOUND])
def test_what_is_not_a_matter_of_items_fails_at_once_and_is_not_asked_again(kind: ErrorKind) -> None:
    world = World({"a": FakeWorker(fails(kind))})
    assert all(result.attempts == 1 and not result.is_ok for result in world.predict(4))
    assert len(world.asked) == 1


@pytest.mark.parametrize("kind", [ErrorKind.UNAVAILABLE, ErrorKind.BUSY])
def test_a_batch_that_was_not_tried_is_sent_again_whole_after_pauses_that_double(kind: ErrorKind) -> None:
    refuses = fails(kind)
    world = World({"a": FakeWorker(in_turn(refuses, refuses, refuses, answers), takes_s=0.0)})
    assert all(result.is_ok and result.attempts == 4 for result in world.predict(4))
    assert {asked.items for asked in world.asked} == {(0, 1, 2, 3)}
    times = [asked.at_s for asked in world.asked]
    pauses = [later - before for before, later in pairwise(times)]
    assert pauses == pytest.approx([0.1, 0.2, 0.4])


def test_failed_items_of_an_answer_are_sent_again_alone() -> None:
    world = World({"a": FakeWorker(in_turn(item_error(1, ErrorKind.UNAVAILABLE), answers))})
    results = world.predict(3)
    assert [result.attempts for result in results] == [1, 2, 1]
    assert [asked.items for asked in world.asked] == [(0, 1, 2), (1,)]


def test_an_item_that_was_rejected_in_an_answer_is_not_asked_again() -> None:
    world = World({"a": FakeWorker(item_error(1, ErrorKind.REJECTED))})
    assert [result.is_ok for result in world.predict(3)] == [True, False, True]
    assert len(world.asked) == 1


def test_too_few_answers_are_no_answer() -> None:
    results = World({"a": FakeWorker(too_few)}).predict(3)
    assert {result.error.kind for result in results if result.error} == {ErrorKind.BAD_ANSWER}
    assert len(results) == 3


def test_retry_after_holds_the_worker_and_not_the_others() -> None:
    held = World({"a": FakeWorker(in_turn(fails(ErrorKind.BUSY, 7.0), answers), takes_s=0.0)})
    assert all(result.is_ok for result in held.predict(1))
    first, second = held.asked
    assert second.at_s - first.at_s == pytest.approx(7.0)
    both = World({"a": FakeWorker(fails(ErrorKind.BUSY, 7.0), seats=1), "b": FakeWorker(answers)})
    assert all(result.is_ok for result in both.predict(8))
    assert both.now_s < 7.0


def test_a_pause_beyond_the_deadline_ends_with_the_deadline() -> None:
    world = World({"a": FakeWorker(fails(ErrorKind.BUSY, 500.0))})
    (result,) = world.predict(1, deadline_s=9.0)
    assert result.error is not None and result.error.kind is ErrorKind.DEADLINE
    assert "scripted" in result.error.message and world.now_s == 9.0


def test_a_worker_that_never_answers_is_left_for_the_other_one() -> None:
    world = World({"a": FakeWorker(lambda _: None), "b": FakeWorker(answers)}, replace(RULES, timeout_s=5.0))
    assert all(result.is_ok for result in world.predict(40))


def test_the_deadline_ends_what_is_under_way() -> None:
    world = World({"a": FakeWorker(lambda _: None)})
    results = world.predict(9, deadline_s=3.0)
    assert {result.error.kind for result in results if result.error} == {ErrorKind.DEADLINE}
    assert world.now_s == 3.0 and world.workers["a"].state.requests_under_way == 0


def test_a_worker_that_starts_is_waited_for() -> None:
    gpu = FakeWorker(answers, starts_after_s=30.0)
    world = World({"gpu": gpu, "cpu": FakeWorker(answers, backend=CPU)})
    results = world.predict(4)
    assert all(result.backend is GPU and not result.is_fallback for result in results)
    assert 30.0 <= world.now_s < 32.0


def test_one_that_starts_for_too_long_is_not_and_the_cpu_answers() -> None:
    gpu = FakeWorker(answers, starts_after_s=300.0)
    world = World({"gpu": gpu, "cpu": FakeWorker(answers, backend=CPU)})
    results = world.predict(4)
    assert all(result.backend is CPU and result.is_fallback for result in results)
    assert "gpu is starting (loading)" in results[0].fallback_reason
    assert 60.0 <= world.now_s < 62.0


def test_behind_the_cpu_stands_the_callable_and_says_so() -> None:
    workers = {
        "gpu": FakeWorker(answers, health=Health(Condition.REFUSED, "404")),
        "cpu": FakeWorker(answers, backend=CPU, health=Health(Condition.REFUSED, "404")),
        "callable": FakeWorker(answers, backend=CALLABLE, seats=1),
    }
    results = World(workers).predict(4)
    assert all(result.backend is CALLABLE and result.is_fallback and result.worker == "callable" for result in results)


def test_items_that_gpus_fail_for_good_are_tried_on_the_cpu() -> None:
    workers = {
        "gpu": FakeWorker(bad_item(1, ErrorKind.MODEL_FAILED)),
        "cpu": FakeWorker(answers, backend=CPU),
    }
    results = World(workers).predict(3)
    assert [result.backend for result in results] == [GPU, CPU, GPU]
    assert "gpu: scripted" in results[1].fallback_reason


def test_items_that_are_wrong_are_not_tried_on_the_cpu() -> None:
    workers = {"gpu": FakeWorker(fails(ErrorKind.REJECTED)), "cpu": FakeWorker(answers, backend=CPU)}
    world = World(workers)
    assert not any(result.is_ok for result in world.predict(2))
    assert {asked.worker for asked in world.asked} == {"gpu"}


@pytest.mark.parametrize(("backend", "expected"), [("gpu", "gpu"), ("cpu", "cpu"), ("callable", "callable")])
def test_a_backend_that_was_asked_for_is_the_only_one(backend: str, expected: str) -> None:
    workers = {
        "gpu": FakeWorker(answers),
        "cpu": FakeWorker(answers, backend=CPU),
        "callable": FakeWorker(answers, backend=CALLABLE, seats=1),
    }
    world = World(workers, replace(RULES, backend=backend))
    assert not any(result.is_fallback for result in world.predict(9))
    assert {asked.worker for asked in world.asked} == {expected}


def test_without_any_worker_the_items_are_given_up_and_told_why() -> None:
    world = World({"a": FakeWorker(answers, health=DOWN)})
    (result,) = world.predict(1)
    assert result.error is not None and result.error.kind is ErrorKind.NO_WORKER
    assert "a is unreachable (refused)" in result.error.message
    assert 60.0 <= world.now_s < 62.0 and not world.asked


def test_workers_that_all_refuse_are_not_waited_for() -> None:
    world = World({"a": FakeWorker(answers, health=Health(Condition.REFUSED, "status 401 log in", status=401))})
    (result,) = world.predict(1)
    assert result.error is not None and result.error.kind is ErrorKind.DENIED and "log in" in result.error.message
    assert world.now_s < 1.0


DOWN_FOR_GOOD = Health(Condition.FAILED, "it ended with exit code 3", status=503)


def test_a_model_that_has_failed_is_not_waited_for() -> None:
    world = World({"a": FakeWorker(answers, health=DOWN_FOR_GOOD)})
    results = world.predict(5)
    assert {result.error.kind for result in results if result.error} == {ErrorKind.MODEL_DOWN}
    assert results[0].error is not None and "exit code 3" in results[0].error.message and world.now_s < 1.0
    with_cpu = World({"a": FakeWorker(answers, health=DOWN_FOR_GOOD), "cpu": FakeWorker(answers, backend=CPU)})
    assert all(result.is_ok and result.is_fallback for result in with_cpu.predict(5)) and with_cpu.now_s < 1.0


def test_a_model_that_fails_meanwhile_ends_the_wait_of_what_was_asked_and_of_the_rest() -> None:
    down = FakeWorker(in_turn(answers, fails(ErrorKind.MODEL_DOWN)), seats=1)
    world = World({"a": down})
    number = world.submit(40)
    world.play_until_asked()
    down.health = DOWN_FOR_GOOD
    world.play()
    kinds = [result.error.kind if result.error else None for result in world.finished[number]]
    assert kinds == [None] * 4 + [ErrorKind.MODEL_DOWN] * 36 and world.now_s < 1.0
    assert down.state.circuit.openings == 0


def test_a_worker_that_dies_is_asked_how_it_is_and_gets_nothing_until_it_is_well() -> None:
    dies = FakeWorker(in_turn(answers, fails(ErrorKind.UNREACHABLE)))
    world = World({"a": dies, "b": FakeWorker(answers, takes_s=1.0)})
    dies.health = Health(Condition.READY)
    number = world.submit(4)
    world.play()
    dies.health = DOWN
    assert all(result.is_ok for result in world.predict(60))
    assert len(world.finished[number]) == 4
    assert sum(asked.worker == "a" for asked in world.asked) <= 4


def test_a_circuit_that_opened_is_waited_for_where_there_is_nothing_else() -> None:
    broken = [fails(ErrorKind.UNAVAILABLE)] * 15
    world = World({"a": FakeWorker(in_turn(*broken, answers), seats=64)}, replace(RULES, batch_size=1))
    assert all(result.is_ok for result in world.predict(15))
    assert world.workers["a"].state.circuit.openings == 1
    assert 20.0 <= world.now_s < 25.0


def test_with_an_open_circuit_the_cpu_answers_at_once() -> None:
    workers = {
        "gpu": FakeWorker(fails(ErrorKind.UNAVAILABLE), seats=64),
        "cpu": FakeWorker(answers, backend=CPU),
    }
    world = World(workers, replace(RULES, batch_size=1))
    results = world.predict(15)
    assert all(result.backend is CPU for result in results) and world.now_s < 20.0
    assert "the circuit of gpu is open" in results[0].fallback_reason


def test_a_check_that_a_busy_worker_does_not_answer_says_nothing() -> None:
    silent = FakeWorker(answers, takes_s=15.0)
    world = World({"a": silent})
    number = world.submit(2)
    world._carry_out()
    world.dispatcher.checked("a", Health(Condition.READY), 0.0)
    world._carry_out()
    world.dispatcher.checked("a", Health(Condition.STARTING, "late", is_silent=True), 0.0)
    assert silent.state.condition is Condition.READY
    world.play()
    assert all(result.is_ok for result in world.finished[number])


def test_a_worker_gets_no_more_items_than_it_takes() -> None:
    world = World({"a": FakeWorker(answers, health=Health(Condition.READY, batch_max=3))})
    assert all(result.is_ok for result in world.predict(10))
    assert max(len(asked.items) for asked in world.asked) == 3


def test_a_short_call_does_not_wait_behind_a_long_one() -> None:
    world = World({"a": FakeWorker(answers, seats=1, takes_s=1.0)})
    long, short = world.submit(400), world.submit(4)
    world.play()
    assert world.finished_at_s[short] < 4.0 < 90.0 < world.finished_at_s[long]


def test_a_call_that_is_given_up_ends_its_requests() -> None:
    world = World({"a": FakeWorker(lambda _: None)})
    number = world.submit(2)
    world.play_until_asked()
    world.dispatcher.cancel(number)
    world.play()
    assert world.dispatcher.is_idle and world.workers["a"].state.requests_under_way == 0
    assert number not in world.finished


def breaks(bad: int, *starts: Break) -> Behaviour:
    """A certain item ends whoever computes it; these are the starts of the workers, one after the other."""
    rest = list(starts)

    def does(items: tuple[int, ...]) -> Reply | Failure:
        if bad not in items:
            return answers(items)
        return Failure(ErrorKind.BROKEN, "it closed", 502, broke=rest.pop(0) if len(rest) > 1 else rest[0])

    return does


def own(*names: str) -> tuple[Break, ...]:
    return tuple(Break(name) for name in names)


def test_an_item_for_which_two_workers_end_is_given_up_and_the_others_are_answered() -> None:
    cpu = FakeWorker(answers, backend=CPU)
    world = World(
        {"a": FakeWorker(breaks(2, *own("1", "2", "3", "4"))), "cpu": cpu, "own": FakeWorker(answers, CALLABLE)}
    )
    results = world.predict(8)
    assert [result.index for result in results if not result.is_ok] == [2]
    error = results[2].error
    assert error is not None and error.kind is ErrorKind.POISON and "2 workers ended" in error.message
    # In its batch, alone, and alone at its worker; no lesser backend is asked for it.
    assert [asked.worker for asked in world.asked if 2 in asked.items] == ["a"] * 3


def test_a_suspect_is_asked_while_its_worker_has_nothing_else_and_other_workers_go_on() -> None:
    slow = FakeWorker(answers, seats=3, takes_s=5.0)
    world = World({"a": FakeWorker(breaks(0, *own("1")), seats=3), "b": slow})
    under_way: list[int] = []

    def watched(items: tuple[int, ...]) -> Reply | Failure | None:
        if items == (0,):
            under_way.append(slow.state.requests_under_way)
            return Failure(ErrorKind.BROKEN, "it closed", 502, broke=Break("2"))
        return answers(items)

    slow.does = watched
    results = world.predict([*["alone"], *["same"] * 80])
    assert [result.index for result in results if not result.is_ok] == [0]
    assert under_way == [1] and slow.state.kept_for is None
    # While what that one had before came to its end, the other worker had all the rest.
    (at_s,) = [asked.at_s for asked in world.asked if asked.worker == "b" and asked.items == (0,)]
    assert sum(asked.worker == "a" for asked in world.asked) > sum(asked.worker == "b" for asked in world.asked)
    assert not [asked for asked in world.asked if asked.worker == "b" and 0.2 < asked.at_s < at_s]


def test_what_a_worker_had_together_makes_nobody_a_culprit() -> None:
    shared = tuple(Break(str(number), is_shared=True) for number in range(9))
    world = World({"a": FakeWorker(breaks(0, *shared))})
    (result,) = world.predict(1)
    assert result.error is not None and result.error.kind is ErrorKind.BROKEN
    assert result.attempts == 1 + RULES.retries


def test_a_worker_that_goes_on_after_it_broke_off_has_not_ended_for_an_item() -> None:
    world = World({"a": FakeWorker(breaks(0, *own("same")))})
    (result,) = world.predict(1)
    assert result.error is not None and result.error.kind is ErrorKind.BROKEN
    assert result.attempts == 1 + RULES.retries


def test_one_worker_that_was_killed_costs_no_item() -> None:
    broken = Failure(ErrorKind.BROKEN, "killed", 502, broke=Break("1"))
    world = World({"a": FakeWorker(in_turn(*[lambda _: broken] * 4, answers), seats=4)})
    results = world.predict(["w", "x", "y", "z"])
    assert all(result.is_ok and result.attempts == 2 for result in results)


def test_a_worker_that_is_kept_for_a_suspect_is_let_go_when_its_call_ends() -> None:
    slow = FakeWorker(in_turn(breaks(0, *own("1")), lambda _: None), seats=2)
    world = World({"a": slow})
    first = world.submit(["x", "y"], deadline_s=3.0)
    world.play()
    assert {result.error.kind for result in world.finished[first] if result.error} == {ErrorKind.DEADLINE}
    slow.does = answers
    assert slow.state.kept_for is None and all(result.is_ok for result in world.predict(4))


OUTCOMES = st.sampled_from(
    [
        answers,
        answers,
        lambda _: None,
        too_few,
        lambda items: Reply(()),
        *(fails(kind) for kind in ErrorKind),
        fails(ErrorKind.BUSY, 3.0),
        fails(ErrorKind.UNAVAILABLE, 1e9),
        *(item_error(bad, kind) for bad in (0, 3) for kind in (ErrorKind.REJECTED, ErrorKind.UNAVAILABLE)),
        bad_item(1, ErrorKind.MODEL_FAILED),
        breaks(1, *own("1", "2", "3")),
        breaks(0, Break(), Break("1", is_shared=True), Break()),
    ]
)
HEALTHS = st.sampled_from(
    [
        Health(Condition.READY),
        Health(Condition.READY, batch_max=2),
        DOWN,
        Health(Condition.STARTING),
        Health(Condition.REFUSED, "no"),
    ]
)
WORKERS = st.builds(
    lambda script, backend, seats, takes_s, health, starts: FakeWorker(
        in_turn(*script), backend, seats, takes_s, health, starts
    ),
    st.lists(OUTCOMES, min_size=1, max_size=12),
    st.sampled_from([GPU, CPU]),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.01, 2.0, 100.0]),
    HEALTHS,
    st.sampled_from([0.0, 5.0, 90.0]),
)


@given(
    workers=st.lists(WORKERS, max_size=4),
    fallback=st.none() | st.lists(OUTCOMES, min_size=1, max_size=4),
    calls=st.lists(st.tuples(st.integers(0, 20), st.sampled_from([0.5, 30.0, 600.0])), min_size=1, max_size=3),
    rules=st.builds(
        replace,
        st.just(RULES),
        retries=st.integers(0, 5),
        batch_size=st.integers(1, 8),
        start_wait_s=st.sampled_from([0.0, 60.0]),
        backend=st.sampled_from(["auto", "auto", "gpu", "cpu"]),
    ),
    chance=st.floats(0, 1),
)
def test_whatever_workers_do_each_item_has_one_result_in_time_and_is_asked_once_at_a_time(
    workers: list[FakeWorker],
    fallback: list[Behaviour] | None,
    calls: list[tuple[int, float]],
    rules: object,
    chance: float,
) -> None:
    assert isinstance(rules, type(RULES))
    named = {f"w{number}": worker for number, worker in enumerate(workers)}
    if fallback is not None:
        named["callable"] = FakeWorker(in_turn(*fallback), CALLABLE, 1)
    world = World(named, rules, lambda: chance)
    numbers = [world.submit(count, deadline_s) for count, deadline_s in calls]
    world.play()
    for number, (count, deadline_s) in zip(numbers, calls, strict=True):
        results = world.finished[number]
        assert [result.index for result in results] == list(range(count))
        assert world.finished_at_s[number] <= deadline_s
        for result in results:
            assert (result.value == result.index and result.backend is not None) if result.is_ok else result.error
            # A try and its retries on each backend, and once more where a batch was taken apart.
            assert result.attempts <= 3 * (2 + rules.retries)
    figures = world.dispatcher.sums.figures()
    assert (figures.items, figures.answered) == (
        sum(count for count, _ in calls),
        sum(result.is_ok for number in numbers for result in world.finished[number]),
    )
    assert all(worker.state.requests_under_way == 0 == worker.state.items_under_way for worker in workers)
