"""docs/grpcurl.md has a line for each call, and each line does what the page says, through reflection alone."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from gpufleet.v1 import job_pb2, node_agent_pb2, scheduler_pb2

from tests.api.asking import forget_node
from tests.e2e.client import Client
from tests.e2e.fleet import Fleet

PAGE = Path(__file__).parents[2] / "docs" / "grpcurl.md"
BUF = Path(sys.executable).with_name("buf")
BUF_SECONDS = 60
AT_ONCE = 4
NOT_BUILT_TEXT = "Not built yet"
SERVICES: tuple[Any, ...] = (
    scheduler_pb2.DESCRIPTOR.services_by_name["Scheduler"],
    node_agent_pb2.DESCRIPTOR.services_by_name["NodeAgent"],
)


@dataclass(frozen=True)
class Line:
    """A command of the page with the comment above it."""

    comment: str
    method: str
    payload: str
    is_for_agents: bool
    max_time: str

    @property
    def is_of_a_model(self) -> bool:
        """Whether it is about the model that the page serves and ends."""
        return '"echo"' in self.payload

    @property
    def is_of_a_group(self) -> bool:
        """Whether it makes, renames or removes the group of the page."""
        return self.method.endswith("Group")

    @property
    def is_of_a_secret(self) -> bool:
        """Whether it stores or removes the secret of the page."""
        return self.method.endswith("Secret")

    @property
    def code(self) -> str:
        """What the page says that the call comes to."""
        answers = re.search(r"answers ([A-Z_]{2,})\b", self.comment)
        return answers[1] if answers else "OK"


def lines_of_the_page() -> list[Line]:
    """Every line that calls a service of this project."""
    found: list[Line] = []
    comment = ""
    for text in PAGE.read_text().splitlines():
        if text.startswith("grpcurl ") and "gpufleet.v1." in text and " describe " not in text:
            found.append(parsed(text, comment))
        comment = text if text.startswith("# ") else ""
    return found


def parsed(text: str, comment: str) -> Line:
    """The parts of one command; a part that is missing, or one too many, fails."""
    words = shlex.split(text)
    method, address = words.pop(), words.pop()
    assert (words[:2], address) == (["grpcurl", "-plaintext"], "localhost:50051"), text
    options = dict(zip(words[2::2], words[3::2], strict=True))
    header = options.pop("-H")
    assert header in ("authorization: Bearer $TOKEN", "authorization: Bearer $AGENT_TOKEN"), text
    line = Line(comment, method, options.pop("-d"), "AGENT" in header, options.pop("-max-time", str(BUF_SECONDS)))
    assert not options, text
    assert comment, f"nothing says what it does: {text}"
    return line


def test_the_page_has_one_line_for_each_call_of_the_contract() -> None:
    methods = sorted(f"{service.full_name}/{method.name}" for service in SERVICES for method in service.methods)
    assert sorted(line.method for line in lines_of_the_page()) == methods


def test_the_page_says_of_exactly_the_calls_that_are_not_built_that_they_are_not() -> None:
    for line in lines_of_the_page():
        assert (NOT_BUILT_TEXT in line.comment) == (line.code == "UNIMPLEMENTED"), line
        assert line.is_for_agents == line.method.startswith("gpufleet.v1.NodeAgent/"), line


async def curl(fleet: Fleet, line: Line, payload: str, image: Path) -> tuple[str, str]:
    """The code that one line comes to, and what was printed.

    buf asks the server for its contracts, as grpcurl does. The time that a line gives itself is for its call alone:
    it has the contracts from an image.
    """
    schema = () if line.max_time == str(BUF_SECONDS) else ("--schema", str(image))
    token = fleet.scheduler.token("agent" if line.is_for_agents else "admin")
    buf = await asyncio.create_subprocess_exec(
        *(BUF, "curl", "--protocol", "grpc", "--http2-prior-knowledge", "--timeout", f"{line.max_time}s", *schema),
        *("-H", f"authorization: Bearer {token}", "-d", payload),
        f"http://{fleet.scheduler.address}/{line.method}",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await buf.communicate()
    assert buf.returncode is not None
    shown = printed.decode(errors="replace")
    # buf exits with the code of the call in all but the lowest three bits, and with less than 8 when it is misused.
    number, misuse = divmod(buf.returncode, 8)
    assert not misuse, f"{line.method}: {shown}"
    code = next(code for code in grpc.StatusCode if code.value[0] == number)
    return code.name, shown


@pytest.fixture
async def own_token(admin: Client) -> str:
    """The id of a token that may be revoked."""
    request = scheduler_pb2.CreateTokenRequest(user="eve", role=scheduler_pb2.ROLE_VIEWER)
    answer = await admin.stub.CreateToken(request)
    return str(answer.token.id)


@pytest.fixture
async def image(tmp_path: Path) -> Path:
    """The contracts, compiled."""
    assert BUF.exists(), f"{BUF} is missing: the environment is incomplete"
    made = tmp_path / "contracts.binpb"
    build = await asyncio.create_subprocess_exec(BUF, "build", PAGE.parents[1] / "protos", "-o", made)
    assert await build.wait() == 0
    return made


async def test_every_line_of_the_page_does_what_it_says(
    fleet: Fleet, admin: Client, own_token: str, image: Path
) -> None:
    submit, *others = lines_of_the_page()
    code, shown = await curl(fleet, submit, submit.payload, image)
    assert code == "OK", shown
    newest = await admin.stub.GetJob(scheduler_pb2.GetJobRequest(last=True))
    job = newest.job.id
    await admin.wait(job, job_pb2.JOB_STATE_RUNNING)
    gate = asyncio.Semaphore(AT_ONCE)

    async def check(line: Line) -> tuple[Line, str, str]:
        payload = line.payload.replace("3f9a01bc", own_token)
        payload = payload.replace('"job_id": 1', f'"job_id": {job}').replace('"job_ids": [1]', f'"job_ids": [{job}]')
        async with gate:
            return (line, *await curl(fleet, line, payload, image))

    in_turn = [
        line for line in others if line.is_for_agents or line.is_of_a_model or line.is_of_a_group or line.is_of_a_secret
    ]
    people = [line for line in others if line not in in_turn]
    outcomes = await asyncio.gather(*map(check, people))
    outcomes += [await check(line) for line in in_turn]  # each builds on the one before
    wrong = [f"{line.method}: {code}, not {line.code}\n{shown}" for line, code, shown in outcomes if code != line.code]
    assert not wrong, "\n".join(wrong)
    told = {line.method.rpartition("/")[2]: shown for line, _, shown in outcomes}
    assert "WATCH_EVENT_SYNCED" in told["Watch"]
    assert "JOB_HAS_NO_INPUT" in told["AttachJob"] or "without a standard input" in told["AttachJob"]
    await admin.cancel(job)
    await forget_node(admin, "by-hand")
