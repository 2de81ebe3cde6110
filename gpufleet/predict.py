"""What the author of a model that answers requests implements. docs/predict.md shows one that answers in five minutes.

Such a model is a class; a replica makes one instance of it, on one device, and gives it batches of items. Nothing has
to be inherited and nothing here imports torch or NumPy: any object with the methods of `PredictModel` is such a model.

    class Doubler:
        inputs = [TensorSpec("x", "FP32", (3,))]             # of one item; may be left out
        outputs = [TensorSpec("y", "FP32", (3,))]

        def load(self, device: str, args: Mapping[str, str]) -> None: ...
        def predict(self, items: list[np.ndarray]) -> list[np.ndarray]:
            return [2 * item for item in items]

**Calls.** The class is made without arguments. Then `load` is called, and `predict` from then on, one call at a time
and all on one thread: a model needs no lock, and a CUDA context belongs to one thread. A call of `predict` that takes
longer than the time-out (60 s by default) costs the replica its life.

**load** is given, by keyword, what its parameters name: `device`, "cpu" or as torch writes it, "cuda:0" (for ROCm,
too); `args`, each `--model-arg NAME=VALUE` as text; `progress`, a function to call with the share that is loaded, 0 to
1, and a few words. Any other parameter is an argument of the model: NAME=VALUE is read as it is annotated (int, float,
bool or str), and an argument that it does not have is refused unless it takes `args`.

**An item** is what one request wants an answer for, or one of many in it: a NumPy array (read it; to write, copy it)
of the shape behind the first number of the request's; bytes for BYTES, or a list of them where each item has several; a
value of JSON for JSON. With several inputs an item is a dict from input to value. Items of one call have the same
inputs, datatypes and shapes, and may be of different people.

**The answer** is a list with a result for each item, in the same order. A result is a NumPy array, a torch tensor on
any device or a number; bytes; a text; a dict from output to any of these; or anything else that JSON can say. With
`outputs` declared it has exactly those. An instance of Exception in place of a result is that item's own error: its
sender alone is told, with status 422.

**predict may be called again with the same items** and must answer alike: where it raises, each item is tried once more
alone, so that one bad item costs itself only; where it raises torch.OutOfMemoryError or MemoryError, both halves of the
batch are, and batches of such items are no larger from then on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

Item: TypeAlias = Any
"""A NumPy array, bytes or a list of them, a value of JSON; with several inputs a dict of these."""

Result: TypeAlias = Any
"""What is answered for an item, or an Exception: its own error."""

DATATYPES = (
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "BF16", "FP32", "FP64", "BYTES", "JSON"),
)
"""Of the Open Inference Protocol, and JSON. BF16 reaches a model as float32, which NumPy has."""

NAME_CHARS_MAX = 100
SPECS_MAX = 100
BATCH_MAX = 10_000


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or an output of one item: its name, a datatype of DATATYPES, and its shape, -1 for any length.

    The shape is () for one number, one BYTES or one value of JSON.
    """

    name: str
    datatype: str
    shape: tuple[int, ...] = ()


@runtime_checkable
class PredictModel(Protocol):
    """What every such model has.

    What else it may have, as an attribute or a method (`traits_of` reads them):

    * `inputs`, `outputs` (list of TensorSpec): what it takes and gives; `load` may still set them. Without `inputs`
      requests may send anything, and without `outputs` results say what they are.
    * `max_batch` (int): the most items of a batch that it takes, whatever was asked for.
    * `examples` (list of items): items to warm up with, and to find the batch size with. Without them, items of zeros
      are made where `inputs` say every shape.
    * `warm_up()`: called once after `load`, in place of warming up with items.
    """

    def load(self, device: str, args: Mapping[str, str]) -> None:
        """Make it ready to compute; it may take other parameters, as this module says."""
        ...

    def predict(self, items: list[Item]) -> Sequence[Result]:
        """One result, or one Exception, for each item, in the same order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictTraits:
    """What a model says of itself, checked. Empty `inputs` or `outputs` are not declared; `max_batch` 0 is no limit."""

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    max_batch: int = 0
    examples: tuple[Item, ...] = ()


def traits_of(model: object) -> PredictTraits:
    """Read what a model says of itself. Raises TypeError that names what is missing or has a wrong value."""
    kind = type(model).__name__
    for name in ("load", "predict"):
        if not callable(getattr(model, name, None)):
            raise TypeError(f"{kind} has no method {name}: see gpufleet/predict.py")
    most = getattr(model, "max_batch", 0)
    if isinstance(most, bool) or not isinstance(most, int) or not 0 <= most <= BATCH_MAX:
        raise TypeError(f"{kind}.max_batch is {most!r}, and should be a whole number from 1 to {BATCH_MAX:,}")
    examples = getattr(model, "examples", ())
    if not isinstance(examples, list | tuple):
        raise TypeError(f"{kind}.examples should be a list of items")
    return PredictTraits(
        inputs=_specs(model, "inputs"), outputs=_specs(model, "outputs"), max_batch=most, examples=tuple(examples)
    )


def _specs(model: object, name: str) -> tuple[TensorSpec, ...]:
    where = f"{type(model).__name__}.{name}"
    specs = getattr(model, name, ())
    if not isinstance(specs, list | tuple) or len(specs) > SPECS_MAX:
        raise TypeError(f"{where} should be a list of at most {SPECS_MAX} gpufleet.predict.TensorSpec")
    for number, spec in enumerate(specs):
        if not isinstance(spec, TensorSpec):
            raise TypeError(f"{where}[{number}] is {spec!r}, and should be a gpufleet.predict.TensorSpec")
        if not isinstance(spec.name, str) or not 1 <= len(spec.name) <= NAME_CHARS_MAX:
            raise TypeError(f"{where}[{number}].name is {spec.name!r}: 1 to {NAME_CHARS_MAX} characters")
        if spec.datatype not in DATATYPES:
            raise TypeError(f"{where}[{number}].datatype is {spec.datatype!r}: one of {', '.join(DATATYPES)}")
        shape: Any = spec.shape  # whatever it was made with
        if not isinstance(shape, tuple) or not all(type(each) is int and each >= -1 for each in shape):
            raise TypeError(f"{where}[{number}].shape is {spec.shape!r}: a tuple of lengths, -1 for any")
        if spec.datatype == "JSON" and spec.shape:
            raise TypeError(f"{where}[{number}].shape is {spec.shape!r}, and of JSON it is ()")
    names = [spec.name for spec in specs]
    if len(set(names)) < len(names):
        raise TypeError(f"{where} has two of one name")
    return tuple(specs)
