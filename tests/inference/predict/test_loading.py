"""A class becomes a model that is warm, or a sentence on what is wrong; its batch size is found by measuring."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gpufleet.predict import PredictTraits, TensorSpec, traits_of
from inference.core.batching import Answered, Raised
from inference.loading import NotLoaded, Wanted, last_line
from inference.predict.computing import PredictCallbacks, PredictThread, compute
from inference.predict.loading import Ready, find_size, in_words, is_out_of_memory, load
from inference.predict.results import read_result
from inference.predict.tensors import WrongData

HERE = __name__


class Plain:
    """Notes how often it is called, and with how many items."""

    sizes: list[int]

    def load(self, **given: Any) -> None:
        """Take anything."""
        self.given, self.sizes = given, []

    def predict(self, items: list[Any]) -> list[Any]:
        """The items."""
        self.sizes.append(len(items))
        return items


class Shaped(Plain):
    """Says its shape, and takes 6 items at most."""

    inputs = (TensorSpec("a", "FP32", (2, -1)), TensorSpec("b", "UINT8"))
    max_batch = 6


class Typed(Plain):
    """Takes arguments of its own, and warms up itself."""

    is_warm = False

    def load(self, device: str, scale: float, deep: bool = False) -> None:  # type: ignore[override]
        """Note them."""
        super().load(device=device, scale=scale, deep=deep)

    def warm_up(self) -> None:
        """Note it."""
        self.is_warm = True


class Examples(Plain):
    """Has an example that it does not take."""

    examples = ("a", "b")

    def predict(self, items: list[Any]) -> list[Any]:
        """Nothing."""
        raise ValueError(f"no {items[0]}")


def loaded(kind: str, batch_max: int | None = 4, **arguments: str) -> Ready:
    wanted = Wanted(entry_point=f"{HERE}:{kind}", arguments=arguments, device="cpu")
    return load(wanted, batch_max, lambda share, words: None)


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, HERE, sys.modules[Plain.__module__])


def test_arguments_are_read_as_load_names_them() -> None:
    model = loaded("Typed", scale="2", deep="on").model
    assert model.given == {"device": "cpu", "scale": 2.0, "deep": True}
    assert model.is_warm and model.sizes == []
    with pytest.raises(NotLoaded, match="the model has no argument scal; did you mean"):
        loaded("Typed", scal="2")
    with pytest.raises(NotLoaded, match='--model-arg scale: "x" is not a number'):
        loaded("Typed", scale="x")


def test_it_is_warmed_up_with_zeros_where_its_inputs_say_what_these_are() -> None:
    ready = loaded("Shaped", 32)
    assert ready.model.sizes == [1, 6] and ready.batch_max == 6
    assert loaded("Plain").model.sizes == []


def test_examples_that_it_does_not_take_are_an_error() -> None:
    with pytest.raises(NotLoaded, match="warming up with examples: ValueError: no a"):
        loaded("Examples")


class Sized:
    """A model whose batches take a time of a clock that the test holds, and of whose items so many fit."""

    def __init__(self, seconds: dict[int, float], fit: int = 10_000) -> None:
        self.now, self.seconds, self.fit = 0.0, seconds, fit

    def predict(self, items: Sequence[Any]) -> Sequence[Any]:
        """The items, after a time."""
        if len(items) > self.fit:
            raise MemoryError
        self.now += self.seconds.get(len(items), 1.0)
        return items


def test_the_batch_size_is_found_by_measuring() -> None:
    some = PredictTraits(examples=(1,))
    model = Sized({16: 0.1, 32: 0.11, 64: 0.13, 128: 0.26})
    assert find_size(model, some, lambda: model.now) == 64
    small = Sized({8: 0.1, 4: 0.1}, fit=8)
    assert find_size(small, some, lambda: small.now) == 8
    assert find_size(model, PredictTraits(examples=(1,), max_batch=32), lambda: model.now) == 32
    with pytest.raises(NotLoaded, match="--max-batch auto needs items to measure with"):
        find_size(model, PredictTraits())


class OutOfMemoryError(RuntimeError):
    """As torch's is called."""


def test_want_of_memory_is_known_as_python_and_torch_say_it() -> None:
    assert is_out_of_memory(MemoryError()) and is_out_of_memory(OutOfMemoryError())
    assert is_out_of_memory(RuntimeError("HIP out of memory. Tried to allocate"))
    assert not is_out_of_memory(ValueError("out of memory")) and not is_out_of_memory(RuntimeError("shapes differ"))
    assert in_words("cpu") == "cpu" and in_words("") == ""


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"predict": None}, "Wrong has no method predict"),
        ({"max_batch": -1}, "Wrong.max_batch is -1"),
        ({"examples": 3}, "Wrong.examples should be a list"),
        ({"inputs": "x"}, "Wrong.inputs should be a list"),
        ({"inputs": ["x"]}, "Wrong.inputs[0] is 'x'"),
        ({"outputs": [TensorSpec("", "FP32")]}, "Wrong.outputs[0].name is ''"),
        ({"outputs": [TensorSpec("y", "FLOAT")]}, "Wrong.outputs[0].datatype is 'FLOAT'"),
        ({"outputs": [TensorSpec("y", "FP32", (-2,))]}, "Wrong.outputs[0].shape is (-2,)"),
        ({"outputs": [TensorSpec("y", "JSON", (2,))]}, "Wrong.outputs[0].shape is (2,), and of JSON"),
        ({"inputs": [TensorSpec("y", "FP32"), TensorSpec("y", "FP32")]}, "Wrong.inputs has two of one name"),
    ],
)
def test_what_a_class_says_wrongly_of_itself_is_named(fields: dict[str, Any], words: str) -> None:
    kind = type("Wrong", (Plain,), fields)
    with pytest.raises(TypeError) as refused:
        traits_of(kind())
    assert str(refused.value).startswith(words)


def test_a_call_that_raises_or_miscounts_or_ends_the_program_is_an_outcome() -> None:
    def computed(predict: Any) -> Answered | Raised:
        model = type("Model", (), {"predict": staticmethod(predict)})()
        return compute(Ready(model=model, traits=PredictTraits(), device="", batch_max=4), [1, 2]).outcome

    def leaves(items: list[Any]) -> None:
        raise SystemExit(3)

    assert computed(lambda items: [1, KeyError("x")]) == Answered([None, "KeyError: 'x'"])
    assert computed(lambda items: [1]) == Answered([None])
    assert computed(lambda items: (each for each in items)) == Answered([None, None])
    assert computed(lambda items: [1, object()]) == Answered(
        [None, "output output is nothing that JSON can say: Object of type object is not JSON serializable"]
    )
    assert isinstance(computed(lambda items: None), Raised) and isinstance(computed(leaves), Raised)


class Unspeakable(RuntimeError):
    """Its own words raise."""

    def __str__(self) -> str:
        raise KeyError("words")


def test_an_exception_whose_words_raise_is_an_outcome_also_beside_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def predict(items: list[Any]) -> None:
        raise Unspeakable

    monkeypatch.setitem(sys.modules, "torch", sys)
    model = type("Model", (), {"predict": staticmethod(predict)})()
    outcome = compute(Ready(model=model, traits=PredictTraits(), device="", batch_max=4), [1, 2]).outcome
    assert isinstance(outcome, Raised) and "Unspeakable" in outcome.message


@pytest.mark.parametrize("problem", [SystemExit(3), MemoryError(), KeyboardInterrupt()])
def test_whatever_loading_raises_the_model_is_told_not_to_be_loaded(problem: BaseException) -> None:
    def load_it() -> Ready:
        raise problem

    told: list[Any] = []
    callbacks = PredictCallbacks(loaded=told.append, not_loaded=told.append, computed=told.append)
    thread = PredictThread(load_it, callbacks)
    thread.start()
    assert thread.stop(60.0)
    assert told == [last_line(problem)]


@pytest.mark.parametrize(
    "result, datatypes",
    [
        (np.ones((2, 3), np.float16), {"output": "FP16"}),
        (np.float64(1), {"output": "FP64"}),
        (True, {"output": "BOOL"}),
        (3, {"output": "INT64"}),
        (2**80, {"output": "JSON"}),
        ("text", {"output": "BYTES"}),
        ({"label": "cat", "sure": 0.5}, {"label": "BYTES", "sure": "FP64"}),
        ({"boxes": [[1, 2]]}, {"output": "JSON"}),
        ([1, 2], {"output": "JSON"}),
        (None, {"output": "JSON"}),
        ({}, {"output": "JSON"}),
    ],
)
def test_a_result_without_declared_outputs_says_itself_what_it_is(result: Any, datatypes: dict[str, str]) -> None:
    assert {name: value.datatype for name, value in read_result(result, ()).items()} == datatypes


@pytest.mark.parametrize(
    "spec, result, words",
    [
        (TensorSpec("y", "FP32", (2,)), np.ones(3), "output y has the shape [3], and the class says [2]"),
        (TensorSpec("y", "INT8"), 300, "output y is int64, and the class says INT8"),
        (TensorSpec("y", "INT8"), 1.5, "output y is float64, and the class says INT8"),
        (TensorSpec("y", "FP32"), "1", "output y is <U1, and the class says FP32"),
        (TensorSpec("y", "BYTES"), 3, "output y is int, and should be bytes or a text"),
        (TensorSpec("y", "JSON"), float("nan"), "output y is nothing that JSON can say"),
    ],
)
def test_a_result_is_what_the_class_declares(spec: TensorSpec, result: Any, words: str) -> None:
    with pytest.raises(WrongData) as refused:
        read_result(result, (spec,))
    assert str(refused.value).startswith(words)


def test_numbers_become_the_declared_datatype_where_they_fit() -> None:
    specs = (TensorSpec("a", "FP32", (2,)), TensorSpec("b", "UINT8"), TensorSpec("c", "BYTES", (2,)))
    values = read_result({"a": [1, 2], "b": 255, "c": ["x", b"y"]}, specs)
    assert np.asarray(values["a"].data).dtype == np.float32 and np.asarray(values["b"].data) == 255
    assert values["c"].data == [b"x", b"y"]
    with pytest.raises(WrongData, match="the result is a dict with a, and should be a dict with a, b, c"):
        read_result({"a": [1, 2]}, specs)
