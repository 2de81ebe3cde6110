"""An item for which replicas end, asked by the client through a gateway."""

from __future__ import annotations

import json
from typing import Any

from gpufleet.client import AsyncInferenceClient, ErrorKind
from tests.gateway.proxy.stage import Call, program, stage

POISON = -1


async def doubles(call: Call) -> None:
    """A model that doubles numbers, and closes the connection on a certain one."""
    if call.head.method != "POST":
        await call.reply(json.dumps({"name": "double", "inputs": [{"name": "x", "datatype": "FP64"}]}).encode())
        return
    items = json.loads(await call.body())["inputs"][0]["data"]
    if POISON in items:
        call.keeps = False
        return
    output = {"name": "y", "datatype": "FP64", "shape": [len(items)], "data": [2 * item for item in items]}
    await call.reply(json.dumps({"outputs": [output]}).encode())


async def test_an_item_for_which_two_replicas_end_is_given_up_and_no_other_one() -> None:
    async with stage() as at, program("r1", doubles) as first, program("r2", doubles) as second:
        await at.serve("double", first, second)
        settings: dict[str, Any] = {"backoff_first_s": 0.001, "backoff_max_s": 0.01, "circuit_failures": 100}
        url = f"http://{at.address}"
        async with AsyncInferenceClient(model="double", gateway=url, token=at.person("ann"), **settings) as client:
            results = await client.predict([1, 2, POISON, 4])
        assert [result.value for result in results] == [2, 4, None, 8]
        error = results[2].error
        assert error is not None and error.kind is ErrorKind.POISON, error
        # With the others, alone, and alone at its replica.
        assert results[2].attempts == 3
