"""The Scheduler service, the part about capacity and use: what a model needs."""

import json
from typing import Any, NoReturn

from gpufleet.v1 import capacity_pb2

from gpufleet.errors import GpufleetError, invalid

from ..engine import Engine
from ..policy.estimate import Misfit, estimate
from .answers import answers

CONFIG_BYTES_MAX = 1_000_000
EXAMPLE = '{"model": {"id_or_path": "llama-3-70b"}, "parameters": {"tp-size": 4}}'


class TrackingCalls:
    """What people ask of capacity. Each method is one RPC."""

    engine: Engine

    @answers
    async def Estimate(self, request: capacity_pb2.EstimateRequest, context: Any) -> capacity_pb2.EstimateResponse:
        """What a model's configuration needs."""
        try:
            found = estimate(_from_json(request.config_json))
        except Misfit as problem:
            raise invalid(f"config_json: {problem.path}", problem.why, next_step=problem.next_step) from None
        return capacity_pb2.EstimateResponse(
            device_count=found.devices,
            min_memory_bytes=found.memory_bytes,
            sentence=found.sentence,
            unused_parameters=found.unused,
        )


def _from_json(text: str) -> object:
    """The configuration; a name that comes twice, and a number that JSON does not know, are refused."""
    if len(text.encode()) > CONFIG_BYTES_MAX:
        raise invalid("config_json", f"is longer than {CONFIG_BYTES_MAX:,} bytes")
    try:
        return json.loads(text, object_pairs_hook=_each_once, parse_constant=_no_number)
    except GpufleetError:
        raise
    except RecursionError:
        raise invalid("config_json", "is nested too deeply to be read") from None
    except ValueError as problem:
        raise invalid("config_json", f"is no JSON: {problem}", next_step=f"Write: {EXAMPLE}") from None


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise invalid("config_json", f'names "{name[:100]}" twice', next_step="Keep one of the two.")
        found[name] = value
    return found


def _no_number(word: str) -> NoReturn:
    raise invalid("config_json", f"holds {word}, which is no number of JSON")
