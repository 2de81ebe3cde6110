"""Generates gen/gpufleet/v1 from protos/gpufleet/v1: messages, servicers, and typed stubs for both.

`python protos/generate.py` writes. With `--check` it writes nothing and fails, naming the files, when what
is committed is not what the protos say. The proto package is the import path, so generated code is used
exactly as the generators wrote it: no rewriting, no patching.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

PROTO_ROOT = Path(__file__).resolve().parent
GENERATED_ROOT = PROTO_ROOT.parent / "gen"
PACKAGE = Path("gpufleet", "v1")
# The one file in the generated folder that is written by hand.
HAND_WRITTEN = frozenset({"__init__.py"})


def generate(output_root: Path) -> None:
    """Run protoc over every proto of the package into `output_root`; SystemExit if it fails."""
    protos = sorted((PROTO_ROOT / PACKAGE).glob("*.proto"))
    if not protos:
        raise SystemExit(f"no .proto files in {PROTO_ROOT / PACKAGE}")
    output_root.mkdir(parents=True, exist_ok=True)
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
        f"--python_out={output_root}",
        f"--grpc_python_out={output_root}",
        f"--mypy_out=quiet:{output_root}",
        f"--mypy_grpc_out=quiet:{output_root}",
        *(str(proto) for proto in protos),
    ]
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit("protoc failed; its words are above")


def generated_files(root: Path) -> dict[str, bytes]:
    """Name → content of the generated files below `root`."""
    return {
        path.name: path.read_bytes()
        for path in (root / PACKAGE).glob("*.py*")
        if path.is_file() and path.name not in HAND_WRITTEN
    }


def differences(fresh: dict[str, bytes], committed: dict[str, bytes]) -> list[str]:
    """One line per generated file that is missing, stale or left over."""
    lines = []
    for name in sorted(fresh.keys() | committed.keys()):
        if name not in committed:
            lines.append(f"missing    gen/{PACKAGE / name}")
        elif name not in fresh:
            lines.append(f"left over  gen/{PACKAGE / name}")
        elif fresh[name] != committed[name]:
            lines.append(f"stale      gen/{PACKAGE / name}")
    return lines


def main() -> None:
    """Generate, or with --check compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 when gen/ is not fresh")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpufleet-proto-") as scratch:
        generate(Path(scratch))
        fresh = generated_files(Path(scratch))
    changes = differences(fresh, generated_files(GENERATED_ROOT))
    if arguments.check:
        if changes:
            raise SystemExit("\n".join(["generated code is not fresh; run `make proto`:", *changes]))
        print(f"gen/{PACKAGE} is fresh ({len(fresh)} files)")
        return
    target = GENERATED_ROOT / PACKAGE
    target.mkdir(parents=True, exist_ok=True)
    for name in generated_files(GENERATED_ROOT).keys() - fresh.keys():
        (target / name).unlink()
    for name, content in fresh.items():
        (target / name).write_bytes(content)
    print("\n".join(changes) or f"gen/{PACKAGE} was fresh already")


if __name__ == "__main__":
    main()
