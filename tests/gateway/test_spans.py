"""From an input in the browser to the frame on its screen as one trace, as a collector of OpenTelemetry gets it."""

from __future__ import annotations

import time

from gateway.measures import TRACED_EVERY_S
from tests.e2e.processes import until
from tests.gateway.stage import Stage, browser
from tests.metrics.receiver import Step, receiving

ROOT = "input to frame shown"
STEPS = ("step", "encode", "sent", "shown")


async def test_an_input_is_followed_from_the_browser_to_the_frame_that_it_has_shown(stage: Stage) -> None:
    async with receiving() as receiver:
        worker = stage.worker("traced", variables=receiver.variables())
        gateway = stage.another_gateway("tracing", variables=receiver.variables())
        await worker.is_served()
        async with browser(stage, gateway=await gateway.address()) as ann:
            await ann.hello("traced")
            turn = await ann.text("turn")
            await ann.frame()
            began_s = time.monotonic()
            for _ in range(20):
                clicked = await ann.click(0.5, 0.5)
                while ann.newest < clicked:
                    await ann.frame()
            expected = {
                ("gpufleet-gateway", ROOT),
                ("gpufleet-worker", "step"),
                ("gpufleet-worker", "encode"),
                ("gpufleet-gateway", "sent"),
                ("gpufleet-gateway", "shown"),
            }

            def roots() -> list[Step]:
                return [step for step in list(receiver.steps) if step.name == ROOT]

            def is_whole(root: Step) -> bool:
                return {(step.service, step.name) for step in receiver.trace(root.trace)} == expected

            await until("a trace is whole", lambda: any(map(is_whole, roots())))
            root = next(each for each in roots() if is_whole(each))
            assert (root.labels["session"], root.labels["kind"]) == (turn["session"], "pointer")
            steps = {step.name: step for step in receiver.trace(root.trace) if step != root}
            assert {step.parent for step in steps.values()} == {root.id}
            order = [steps[name].end_ns for name in STEPS]
            assert order == sorted(order) and order[-1] <= root.end_ns
            most = 1 + (time.monotonic() - began_s) / TRACED_EVERY_S
            assert len(roots()) <= most, "inputs are followed now and then, and not all"
            await ann.say(type="leave")
            await ann.text("end")
        worker.end()
        gateway.end()
