"""Generates from protos/gpufleet/v1: gen/gpufleet/v1 for Python, and gateway/web/src/generated for the dashboard.

`python protos/generate.py` writes. With `--check` it writes nothing and fails, naming the files, when what
is committed is not what the protos say. For Python: messages, servicers, and typed stubs for both; the proto package is
the import path, so generated code is used exactly as the generators wrote it: no rewriting, no patching, but of the one
line with which it asks for the grpcio of its own patch release. That line asks for what pyproject.toml asks for. Beside
them the protos' comments, for the gateway's OpenAPI. For the dashboard: the types of the JSON that the gateway passes
on, which `page_types.py` writes.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from importlib.resources import files
from pathlib import Path

from page_types import comments, page_types

PROTO_ROOT = Path(__file__).resolve().parent
ROOT = PROTO_ROOT.parent
PACKAGE = Path("gpufleet", "v1")
PYTHON = Path("gen") / PACKAGE
COMMENTS = PYTHON / "comments.json"
PAGE_TYPES = Path("gateway", "web", "src", "generated", "messages.ts")
# The one file in each generated folder that is written by hand.
HAND_WRITTEN = frozenset({"__init__.py"})


def generate(output_root: Path) -> None:
    """Run protoc over every proto of the package, for files at the same places below `output_root` as below the root.

    SystemExit if it fails.
    """
    protos = sorted((PROTO_ROOT / PACKAGE).rglob("*.proto"))
    if not protos:
        raise SystemExit(f"no .proto files in {PROTO_ROOT / PACKAGE}")
    python = output_root / "gen"
    python.mkdir(parents=True)
    descriptors = output_root / "descriptors"
    # The plugins are looked up beside this interpreter, so that the environment need not be activated.
    scripts = Path(sys.executable).parent
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        f"--plugin=protoc-gen-mypy={scripts / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={scripts / 'protoc-gen-mypy_grpc'}",
        f"--proto_path={PROTO_ROOT}",
        f"--proto_path={files('grpc_tools') / '_proto'}",
        f"--python_out={python}",
        f"--grpc_python_out={python}",
        f"--mypy_out=quiet:{python}",
        f"--mypy_grpc_out=quiet:{python}",
        f"--descriptor_set_out={descriptors}",
        "--include_source_info",
        *(str(proto) for proto in protos),
    ]
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit("protoc failed; its words are above")
    _ask_for(least_grpcio(), python)
    page = output_root / PAGE_TYPES
    page.parent.mkdir(parents=True)
    page.write_text(page_types(descriptors.read_bytes()))
    (output_root / COMMENTS).write_text(comments(descriptors.read_bytes()), encoding="utf-8")


def least_grpcio() -> str:
    """The oldest grpcio that pyproject.toml allows."""
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (found,) = (match[1] for each in dependencies if (match := re.match(r"grpcio>=([\d.]+)", each)))
    return f"{found}.0"


def _ask_for(version: str, folder: Path) -> None:
    for path in folder.rglob("*_pb2_grpc.py"):
        text, count = re.subn(
            r"(?m)^GRPC_GENERATED_VERSION = '.*'$", f"GRPC_GENERATED_VERSION = '{version}'", path.read_text()
        )
        assert count == 1, f"{path.name} asks for its version in another way"
        path.write_text(text)


def generated_files(root: Path) -> dict[Path, bytes]:
    """Path → content of the generated files below `root`."""
    return {
        path.relative_to(root): path.read_bytes()
        for path in [*(root / PYTHON).rglob("*.py*"), root / COMMENTS, *(root / PAGE_TYPES.parent).glob("*")]
        if path.is_file() and path.name not in HAND_WRITTEN and path.parent.name != "__pycache__"
    }


def differences(fresh: dict[Path, bytes], committed: dict[Path, bytes]) -> list[str]:
    """One line per generated file that is missing, stale or left over."""
    lines = []
    for path in sorted(fresh.keys() | committed.keys()):
        if path not in committed:
            lines.append(f"missing    {path}")
        elif path not in fresh:
            lines.append(f"left over  {path}")
        elif fresh[path] != committed[path]:
            lines.append(f"stale      {path}")
    return lines


def main() -> None:
    """Generate, or with --check compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 when generated code is not fresh")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpufleet-proto-") as scratch:
        generate(Path(scratch))
        fresh = generated_files(Path(scratch))
    committed = generated_files(ROOT)
    changes = differences(fresh, committed)
    if arguments.check:
        if changes:
            raise SystemExit("\n".join(["generated code is not fresh; run `make proto`:", *changes]))
        print(f"{PYTHON} and {PAGE_TYPES} are fresh ({len(fresh)} files)")
        return
    for path in committed.keys() - fresh.keys():
        (ROOT / path).unlink()
    for path, content in fresh.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_bytes(content)
    print("\n".join(changes) or "generated code was fresh already")


if __name__ == "__main__":
    main()
