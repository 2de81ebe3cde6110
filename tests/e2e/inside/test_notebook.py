"""`gpuctl notebook`: Jupyter on a node, in the browser of who asked for it."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import sys
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpufleet.v1 import job_pb2
from websockets.asyncio.client import connect

from cli.submitting.notebook import has_desktop
from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.e2e.inside.test_forward_command import typed
from tests.e2e.processes import DEADLINE_SECONDS, until

STAND_IN = Path(__file__).with_name("jupyter_server.py")


def programs(folder: Path) -> tuple[Path, Path]:
    """A folder with a Jupyter and a browser in it, and where the browser notes what it was opened on."""
    (folder / "bin").mkdir()
    opened = folder / "opened"
    for name, line in (
        ("jupyter-server", f'exec {shlex.join([sys.executable, str(STAND_IN)])} "$@"'),
        ("browser", f'echo "$1" > {opened}.part && mv {opened}.part {opened}'),
    ):
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / "bin" / name).chmod(0o755)
    return folder / "bin", opened


def status_of(address: str) -> int:
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            status: int = answer.status
            return status
    except urllib.error.HTTPError as problem:
        problem.close()
        return problem.code


async def test_a_notebook_opens_in_the_browser_with_its_token_and_what_it_saved_is_brought_here(
    shared_fleet: Fleet, person: Client, tmp_path: Path
) -> None:
    there, opened = programs(tmp_path)
    words = ("--gpus", "1", "--env", f"PATH={there}:/usr/bin:/bin", "--download", "*.ipynb", "--port", "20123:0")
    async with typed(shared_fleet, "notebook", *words, environment={"BROWSER": f"{there}/browser %s"}) as notebook:
        job_id = int((await notebook.says(r"leads to port 20123 of job (\d+)"))[1])
        await until("a browser is opened", opened.exists)
        address = opened.read_text().strip()
        assert await asyncio.to_thread(status_of, address) == 200
        assert await asyncio.to_thread(status_of, address.partition("?")[0]) == 403
        job = await person.job(job_id)
        assert (job.spec.name, job.spec.no_requeue, job.spec.devices[0].count) == ("notebook", True, 1)
        notebook.process.send_signal(signal.SIGINT)
        assert await notebook.code() != 0
        assert "Traceback" not in notebook.said, notebook.said
    assert (await person.job(job_id)).state == job_pb2.JOB_STATE_CANCELLED
    assert (shared_fleet.work / "work.ipynb").read_text() == "{}"
    (shared_fleet.work / "work.ipynb").unlink()


def asked(address: str, token: str, method: str = "GET", body: object = None) -> Any:
    """What Jupyter answers to a call."""
    request = urllib.request.Request(address, method=method, data=None if body is None else json.dumps(body).encode())
    request.add_header("Authorization", f"token {token}")
    with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS) as answer:
        return json.load(answer)


async def printed_by(channels: str, code: str) -> str:
    """What a cell with this code prints, run by a kernel whose messages come by this address."""
    header = {"msg_id": "1", "session": "test", "username": "test", "version": "5.3", "msg_type": "execute_request"}
    header["date"] = datetime.now(UTC).isoformat()
    content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False, "user_expressions": {}}
    message = {"channel": "shell", "header": header, "parent_header": {}, "metadata": {}, "content": content}
    said = ""
    async with asyncio.timeout(DEADLINE_SECONDS), connect(channels) as kernel:
        await kernel.send(json.dumps(message | {"buffers": []}))
        answered = idle = False
        while not (answered and idle):
            heard = json.loads(await kernel.recv())
            if heard["parent_header"].get("msg_id") != "1":
                continue
            if heard["msg_type"] == "stream":
                said += heard["content"]["text"]
            elif heard["msg_type"] == "execute_reply":
                assert heard["content"]["status"] == "ok", heard
                answered = True
            elif heard["msg_type"] == "status":
                idle = heard["content"]["execution_state"] == "idle"
    return said


async def test_a_cell_runs_in_the_kernel_of_a_real_jupyter_and_what_was_saved_there_is_brought_here(
    shared_fleet: Fleet, person: Client, tmp_path: Path
) -> None:
    """By way of everything: the port here, scheduler, agent, Jupyter, its kernel, and back."""
    places = ("--env", f"PATH={Path(sys.executable).parent}:/usr/bin:/bin", "--env", f"HOME={tmp_path}")
    words = ("--gpus", "1", *places, "--download", "*.ipynb", "--no-open", "--port", "20124:0")
    async with typed(shared_fleet, "notebook", *words) as notebook:
        page = (await notebook.says(r"it answers at (\S+)"))[1]
        job_id = int((await notebook.says(r"leads to port 20124 of job (\d+)"))[1])
        here, _, token = page.partition("?token=")
        assert await asyncio.to_thread(status_of, f"{here}api/kernels") == 403
        kernel = await asyncio.to_thread(asked, f"{here}api/kernels", token, "POST", {"name": "python3"})
        channels = f"{here.replace('http', 'ws', 1)}api/kernels/{kernel['id']}/channels?token={token}"
        code = "import os; print(6 * 7, os.environ['GPUFLEET_JOB_ID'])"
        assert await printed_by(channels, code) == f"42 {job_id}\n"
        cells = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
        saved = {"type": "notebook", "content": cells}
        await asyncio.to_thread(asked, f"{here}api/contents/real.ipynb", token, "PUT", saved)
        notebook.process.send_signal(signal.SIGINT)
        assert await notebook.code() != 0
        assert "Traceback" not in notebook.said, notebook.said
    assert (await person.job(job_id)).state == job_pb2.JOB_STATE_CANCELLED
    assert json.loads((shared_fleet.work / "real.ipynb").read_text())["nbformat"] == 4
    (shared_fleet.work / "real.ipynb").unlink()


async def test_a_node_without_jupyter_says_so_and_what_to_do(shared_fleet: Fleet) -> None:
    async with typed(shared_fleet, "notebook", "--no-open", "--env", "PATH=/nowhere") as notebook:
        assert await notebook.code() == 127
        assert "there is no Jupyter in PATH on n1. Install it there" in notebook.said


def test_a_browser_is_opened_where_somebody_can_see_it() -> None:
    assert (
        has_desktop({}, "darwin") and has_desktop({"DISPLAY": ":0"}, "linux") and has_desktop({"BROWSER": "x"}, "linux")
    )
    assert not has_desktop({"SSH_CONNECTION": "1"}, "linux")
