"""Schemathesis asks each path of openapi.json, rightly and wrongly: no answer is a fault of ours, or off its schema."""

from __future__ import annotations

import json
import re
from typing import Any

import requests
import schemathesis
from gpufleet.v1 import job_pb2, scheduler_pb2
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.config import SchemathesisConfig
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi import checks

from gateway.api.openapi import document
from gateway.api.table import ROWS, Form
from tests.e2e.processes import DEADLINE_SECONDS
from tests.gateway.stage import Stage

EXAMPLES = 3
"""Of each kind for each operation: with all of them it stays below what one person may ask at once."""

CHECKS = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]

PARAMETER = re.compile(r"\{(\w+)\}")

STREAMS = {row.path for row in ROWS if row.form is not Form.OBJECT}
"""They may go on for ever: tests/gateway/api/test_asking.py follows them."""


def closed_schema() -> dict[str, Any]:
    """openapi.json, where an answer may have no other field than those that it names."""
    told: dict[str, Any] = json.loads(document())
    for schema in told["components"]["schemas"].values():
        if schema.get("type") == "object":
            schema["additionalProperties"] = False
    told["paths"] = {path: each for path, each in told["paths"].items() if path not in STREAMS}
    return told


async def test_no_answer_is_a_fault_of_ours_or_off_its_schema(stage: Stage) -> None:
    schema = schemathesis.openapi.from_dict(closed_schema(), config=SchemathesisConfig())
    asked: dict[str, set[int]] = {}
    async with stage.fleet.client() as admin:
        job = await admin.submit("sh", "-c", "echo hi", gpus=1, name="of which the answers tell")
        await admin.wait(job, job_pb2.JOB_STATE_SUCCEEDED)
        for result in schema.get_all_operations():
            operation: Any = result.ok()  # type: ignore[union-attr]
            request = scheduler_pb2.CreateTokenRequest(user="schemathesis", role=scheduler_pb2.ROLE_ADMIN)
            token = (await admin.stub.CreateToken(request, timeout=DEADLINE_SECONDS)).secret
            with requests.Session() as session:
                session.headers["Authorization"] = f"Bearer {token}"
                session.trust_env = False
                statuses = asked.setdefault(operation.label, set())
                if (
                    operation.method.upper() == "GET"
                    and operation.path.count("{") == operation.path.count("{job_id}") == 1
                ):
                    case = operation.Case(path_parameters={"job_id": job})
                    statuses.add(case.call_and_validate(f"http://{stage.gateway}", session, checks=CHECKS).status_code)
                for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                    _ask(stage, session, operation.as_strategy(generation_mode=mode), statuses)
    # What is made up is mostly refused; what looks at what there is needs nothing but a token, and the job.
    looks = {f"GET {row.path}" for row in ROWS if row.verb == "GET" and row.form is Form.OBJECT}
    assert looks - {label for label, found in asked.items() if 200 in found} == {
        "GET /api/v1/jobs/newest",
        "GET /api/v1/jobs/{job_id}/items",
    }


def _ask(stage: Stage, session: requests.Session, strategy: Any, statuses: set[int]) -> None:
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def ask(case: Any) -> None:
        response = case.call(base_url=f"http://{stage.gateway}", session=session, timeout=DEADLINE_SECONDS)
        case.validate_response(response, checks=CHECKS)
        statuses.add(response.status_code)

    ask()
