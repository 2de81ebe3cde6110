"""docs/your-code.md typed on a laptop that has the wheel, a token and a folder, and a network of its own."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from gpufleet.v1 import scheduler_pb2

from gpufleet.net.certificates import make_certificates
from tests.containers.engine import EngineOfTests, running_engine, skip_without_podman
from tests.containers.python_image import import_python_image
from tests.e2e.inside.test_forward_command import Typed
from tests.e2e.inside.test_notebook import STAND_IN
from tests.packaging.installing import build_wheel, copy_tree, new_environment
from tests.several_nodes.fleet import SpreadFleet
from tests.several_nodes.network import NAMESPACES, Machine, Network

pytestmark = [pytest.mark.nightly, pytest.mark.slow]

PAGE = (Path(__file__).parents[2] / "docs/your-code.md").read_text()
SECTION = PAGE.partition("## Once through, from a laptop\n")[2].partition("\n## ")[0]
BROWSER = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).status)"
SCHEDULER = "head:50051"


def blocks(language: str) -> list[str]:
    """What the section shows in this language."""
    return re.findall(rf"```{language}\n(.*?)```", SECTION, re.DOTALL)


@dataclass(slots=True)
class Laptop:
    """Somebody at a machine with the wheel in an environment, in the folder of the page."""

    machine: Machine
    home: Path
    python: Path

    @property
    def folder(self) -> Path:
        return self.home / "wave"

    @asynccontextmanager
    async def typed(self, *words: str) -> AsyncIterator[Typed]:
        """A command that runs, with nothing of this process's variables; killed where it has not ended."""
        kept = {name: value for name, value in os.environ.items() if name.startswith(("LANG", "LC_"))}
        process = await asyncio.create_subprocess_exec(
            *(*self.machine.inside, *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**kept, "HOME": str(self.home), "PATH": f"{self.python.parent}:/usr/bin:/bin"},
            cwd=self.folder,
        )
        command = Typed(process)
        try:
            yield command
        finally:
            if process.returncode is None:
                process.kill()
            await command.code()

    async def run(self, *words: str) -> tuple[str, str]:
        """What it writes to its output and to its errors; fails the test where it fails."""
        async with self.typed(*words) as command:
            assert command.process.stdout is not None
            said = (await command.process.stdout.read()).decode()
            code = await command.code()
        assert code == 0, f"{words}: {code}\n{said}\n{command.said}"
        return said, command.said

    async def type(self, line: str) -> tuple[str, str]:
        """The same of a line."""
        return await self.run("sh", "-c", f"exec {line}")


@pytest.fixture
def gpu2(network: Network) -> Machine:
    """The machine of the node: behind a router, where nobody can dial into."""
    return network.hidden("gpu2", network.router())


@pytest.fixture
def engine(gpu2: Machine) -> Iterator[EngineOfTests]:
    """Podman on the machine of the node, with the image of the page."""
    skip_without_podman()
    (image,) = re.findall(r'image = "(\S+)"', SECTION)
    # Podman takes no folder whose name is long. Only the network is the machine's: crun needs the groups in /sys.
    inside = ("nsenter", f"--net={NAMESPACES / gpu2.namespace}")
    with (
        tempfile.TemporaryDirectory(prefix="engine-", dir="/tmp") as folder,
        running_engine(Path(folder), inside) as (made, _),
    ):
        # A stand-in for Jupyter, which takes its options and its token, and saves when it is ended.
        program = STAND_IN.read_text()
        import_python_image(made, image, {"jupyter-server": f"exec python - \"$@\" << 'END'\n{program}END\n"})
        yield made


@pytest.fixture
async def laptop(
    network: Network, head: Machine, gpu2: Machine, engine: EngineOfTests, tmp_path: Path
) -> AsyncIterator[Laptop]:
    """The fleet of the page, and the laptop, which has what the page says."""
    tls = make_certificates(tmp_path / "tls", ["head", head.address, "127.0.0.1"])
    flags = ("--host", head.address, "--tls-cert", str(tls.cert_file), "--tls-key", str(tls.key_file))
    fleet = SpreadFleet(tmp_path / "fleet", head, *flags)
    fleet.ca_file = tls.ca_file
    fleet.scheduler.address = SCHEDULER
    machine = network.machine("laptop")
    home = tmp_path / "laptop"
    (home / "wave").mkdir(parents=True)
    (home / "ca.pem").write_bytes(tls.ca_file.read_bytes())
    (home / "wave" / "train.py").write_text(blocks("python")[0])
    (home / "wave" / "gpufleet.toml").write_text(blocks("toml")[0])
    tree = tmp_path / "tree"
    copy_tree(tree)
    wheel = build_wheel(tree, tmp_path / "wheel")
    install = new_environment(home, str(wheel))
    async with fleet:
        known = ("--ca-file", str(tls.ca_file), "--virtual-gpus", "1")
        await fleet.add_node("gpu2", *known, environment=engine.environment, inside=gpu2.inside)
        async with fleet.client() as admin:
            made = await admin.stub.CreateToken(
                scheduler_pb2.CreateTokenRequest(user="ada", role=scheduler_pb2.ROLE_USER)
            )
        (home / "ada.token").touch(0o600)
        (home / "ada.token").write_text(made.secret)
        yield Laptop(machine, home, install.python)


async def test_the_page_leads_from_a_folder_to_a_result_through_a_container_and_a_notebook(laptop: Laptop) -> None:
    typed = iter(line for block in blocks("sh") for line in block.splitlines())
    found, _ = await laptop.run("python", "-P", "-c", "import gpufleet; print(gpufleet.__file__)")
    assert found.startswith(str(laptop.home)), "gpufleet is not what the wheel brought"
    await laptop.type(next(typed))
    said, told = await laptop.type(next(typed))
    assert "step 20 loss" in said and "gpuctl: --upload .: 2 files" in told, (said, told)
    assert (laptop.folder / "out" / "weight").read_text() == f"{3 * (1 - 0.8**20):.4f}\n"

    async with laptop.typed("sh", "-c", f"exec {next(typed)}") as notebook:
        address = (await notebook.says(r"it answers at (\S+)"))[1]
        assert (await laptop.run("python", "-P", "-c", BROWSER, address))[0] == "200\n"
        notebook.process.send_signal(signal.SIGINT)
        await notebook.code()
    assert (laptop.folder / "work.ipynb").exists(), notebook.said

    await laptop.type(next(typed))
    await laptop.type(next(typed))
    assert "step 50 loss" in (await laptop.type(next(typed)))[0]
    await laptop.type(next(typed))
    assert (laptop.folder / "longer").read_text() == f"{3 * (1 - 0.8**50):.4f}\n"
    assert next(typed, None) is None, "a line of the page is not typed"
