"""`gpuctl notebook`: Jupyter on a node, in the browser of who asked for it."""

from __future__ import annotations

import asyncio
import signal
import sys
import urllib.error
import urllib.request
from pathlib import Path

from gpufleet.v1 import job_pb2

from cli.submitting.notebook import has_desktop
from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.e2e.inside.test_forward_command import typed
from tests.e2e.processes import until

STAND_IN = Path(__file__).with_name("jupyter_server.py")


def programs(folder: Path) -> tuple[Path, Path]:
    """A folder with a Jupyter and a browser in it, and where the browser notes what it was opened on."""
    (folder / "bin").mkdir()
    opened = folder / "opened"
    for name, line in (
        ("jupyter-server", f'exec {sys.executable} {STAND_IN} "$@"'),
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


async def test_a_node_without_jupyter_says_so_and_what_to_do(shared_fleet: Fleet) -> None:
    async with typed(shared_fleet, "notebook", "--no-open", "--env", "PATH=/nowhere") as notebook:
        assert await notebook.code() == 127
        assert "there is no Jupyter in PATH on n1. Install it there" in notebook.said


def test_a_browser_is_opened_where_somebody_can_see_it() -> None:
    assert (
        has_desktop({}, "darwin") and has_desktop({"DISPLAY": ":0"}, "linux") and has_desktop({"BROWSER": "x"}, "linux")
    )
    assert not has_desktop({"SSH_CONNECTION": "1"}, "linux")
