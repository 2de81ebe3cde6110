"""How many devices a model's configuration needs, and how much memory on each: a rule of thumb, from the words of its
file alone. Nothing is looked up and nothing is learned, so that the same file always gives the same answer.

    world size = tp × pp × max(dp, dcp, cp)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from re import compile
from typing import Never

from ..state.units import MB

TENSOR, PIPELINE, DATA, DECODE_CONTEXT, CONTEXT = "tp", "pp", "dp", "dcp", "cp"
LONG_NAMES = {
    TENSOR: "tensor",
    PIPELINE: "pipeline",
    DATA: "data",
    DECODE_CONTEXT: "decode-context",
    CONTEXT: "context",
}
SPELLINGS = {
    spelling: short
    for short, long in LONG_NAMES.items()
    for dashed in (f"{long}-parallel-size", f"{short}-size", short)
    for spelling in (dashed, dashed.replace("-", "_"))
}
"""Every spelling of a degree of parallelism that counts."""

OTHERS = frozenset({"ep-size", "sp-size"})
"""Names of the engines' own that are a letter away from a spelling; with underscores, too."""

MEMORY_BY_SIZE = (((70, 65), 20_000 * MB), ((13, 7), 12_000 * MB))
"""Memory on each device, by billions of parameters in the model's name, the largest size first."""
MEMORY_ELSE = 8_000 * MB

SIZE = compile(r"(?<![0-9.])([0-9]{1,6})[bB](?![A-Za-z0-9])")
"""A whole number of billions: 27b is no 7B, 1.7b is none, and 8bit is no size."""

OTHER_ENDINGS = (
    "parallel",
    "parallelism",
    "paralleldegree",
    "parallelismsize",
    "parallelworldsize",
    "modelparallelsize",
)
"""What people and other engines write behind `tensor` and its like where `-parallel-size` is meant."""

SEPARATORS = compile("[^a-z0-9]")

DEVICES_MAX = 1_000_000
"""More than any fleet has; a larger world size is a mistake."""
GRID_VALUES_MAX = 10_000
UNUSED_MAX = 1_000
"""Names that are not used and are told."""
NAME_CHARS_MAX = 100
"""Of a name that is repeated to whoever gave it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEstimate:
    """What a configuration needs: devices in all, memory on each in bytes, and the names that were not used."""

    devices: int
    memory_bytes: int
    degrees: Mapping[str, int]
    unused: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The one line for people."""
        each = self.degrees
        return (
            f"Estimated requirements: {self.devices:,} GPU{'' if self.devices == 1 else 's'}, "
            f"{self.memory_bytes // MB:,} MB each (tp {each[TENSOR]} × pp {each[PIPELINE]} × "
            f"max(dp {each[DATA]}, dcp {each[DECODE_CONTEXT]}, cp {each[CONTEXT]}))."
        )


class Misfit(Exception):
    """Why there is no estimate: the path of what is wrong in the configuration, why, and what to write instead."""

    def __init__(self, path: str, why: str, next_step: str = "") -> None:
        super().__init__(f"{path} {why}")
        self.path = path
        self.why = why
        self.next_step = next_step


def estimate(config: object) -> ModelEstimate:
    """Read a configuration, as JSON gives it. Raises Misfit."""
    top = _object("the configuration", config)
    _refuse_near_misses("", top, ("model", "parameters"))
    unused = [name for name in top if name not in ("model", "parameters")]
    model = _object("model", top.get("model", {}))
    _refuse_near_misses("model.", model, ("id_or_path",))
    unused += [f"model.{name}" for name in model if name != "id_or_path"]
    name = model.get("id_or_path", "")
    if not isinstance(name, str):
        raise Misfit("model.id_or_path", f"is {_kind(name)}; it must be a text", 'Write "llama-3-70b", for instance.')
    degrees, own = _degrees(_object("parameters", top.get("parameters", {})))
    devices = degrees[TENSOR] * degrees[PIPELINE] * max(degrees[DATA], degrees[DECODE_CONTEXT], degrees[CONTEXT])
    if devices > DEVICES_MAX:
        raise Misfit("parameters", f"come to {devices:,} GPUs, and no fleet has more than {DEVICES_MAX:,}")
    return ModelEstimate(
        devices=devices,
        memory_bytes=memory_of(name),
        degrees=degrees,
        unused=tuple(_short(each) for each in (own + unused)[:UNUSED_MAX]),
    )


def memory_of(name: str) -> int:
    """Memory on each device in bytes, by the sizes in a model's name."""
    sizes = {int(found[1]) for found in SIZE.finditer(name)}
    return next((memory for known, memory in MEMORY_BY_SIZE if sizes.intersection(known)), MEMORY_ELSE)


def _degrees(parameters: Mapping[str, object]) -> tuple[dict[str, int], list[str]]:
    """The degree of each kind of parallelism, 1 where none is given, and the names that are the engine's own."""
    degrees: dict[str, int] = {}
    spelled: dict[str, str] = {}
    own: list[str] = []
    for name, value in parameters.items():
        short = SPELLINGS.get(name)
        if short is None:
            if meant := _nearest(name):
                _not_known(f"parameters.{_short(name)}", meant)
            own.append(name)
            continue
        if short in degrees:
            raise Misfit(f"parameters.{name}", f"says what {spelled[short]} says already", "Keep one of the two.")
        degrees[short] = _largest(f"parameters.{name}", value)
        spelled[short] = name
    return {short: degrees.get(short, 1) for short in LONG_NAMES}, own


def _largest(path: str, value: object) -> int:
    """The largest value of a grid, or the value itself."""
    if not isinstance(value, list):
        return _degree(path, value)
    if not value:
        raise Misfit(path, "is an empty list", "Write a number, or a list with one at least.")
    if len(value) > GRID_VALUES_MAX:
        raise Misfit(path, f"lists {len(value):,} values; {GRID_VALUES_MAX:,} are the most")
    return max(_degree(f"{path}[{place}]", each) for place, each in enumerate(value))


def _degree(path: str, value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise Misfit(path, f"is {_kind(value)}; it must be a whole number", "Write 4, or a grid such as [1, 2, 4].")
    if value < 1:
        raise Misfit(path, f"is {_short(str(value))}; it must be 1 or more")
    if value > DEVICES_MAX:
        raise Misfit(path, f"is more than {DEVICES_MAX:,}, and no fleet has so many GPUs")
    return value


def _object(path: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise Misfit(path, f"is {_kind(value)}; it must be an object", "Write it in braces: {…}.")
    return value


def _refuse_near_misses(prefix: str, names: Mapping[str, object], known: tuple[str, ...]) -> None:
    for name in names:
        if name in known:
            continue
        for each in known:
            if _bare(name) == _bare(each) or _is_near(_bare(name), _bare(each)):
                _not_known(f"{prefix}{_short(name)}", each)


def _not_known(path: str, meant: str) -> Never:
    raise Misfit(path, f"is not known; {meant} was probably meant", f"Write {meant}, or leave it out.")


def _nearest(name: str) -> str | None:
    """The spelling that a name was probably meant to be; None when it is the engine's own."""
    if name.replace("_", "-") in OTHERS or len(name) > NAME_CHARS_MAX:
        return None
    bare = _bare(name)
    for long in LONG_NAMES.values():
        words = long.replace("-", "")
        if bare in {f"{words}{rest}" for rest in OTHER_ENDINGS}:
            return f"{long}-parallel-size"
    dashed = [spelling for spelling in SPELLINGS if "_" not in spelling]
    same = [spelling for spelling in dashed if _bare(spelling) == bare]
    near = [spelling for spelling in dashed if _is_near(bare, _bare(spelling))]
    return next(iter(same + near), None)


def _bare(name: str) -> str:
    """The letters alone."""
    return SEPARATORS.sub("", name.lower())


def _is_near(name: str, known: str) -> bool:
    """Whether one was mistyped for the other: a letter in a short name, two in a long one, none in `tp`."""
    allowed = 0 if len(known) < 5 else 1 if len(known) < 9 else 2
    return 0 < _distance(name, known, allowed) <= allowed


def _distance(one: str, other: str, most: int) -> int:
    """Letters to add, drop, change or swap with their neighbour; `most` + 1 for anything above it."""
    if abs(len(one) - len(other)) > most or not most:
        return most + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        last, row, older = row, [i], before
        for j, wanted in enumerate(other, 1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
        before = last
    return min(row[-1], most + 1)


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f'the text "{_short(value)}"'
        case int() | float():
            return f"the number {_short(str(value))}"
        case list():
            return "a list"
        case _:
            return "an object"


def _short(text: str) -> str:
    return text if len(text) <= NAME_CHARS_MAX else f"{text[: NAME_CHARS_MAX - 1]}…"
