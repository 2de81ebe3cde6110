"""One container of an image of one file, made here without a registry: whether an engine that answers also starts any.

The file is a program that exits with 0, as the kernel takes it: an ELF header, one segment and a few instructions.
"""

from __future__ import annotations

import io
import json
import platform
import struct
import tarfile
from collections.abc import Callable, Mapping
from typing import Any

from ..core.launch import RefusalReason
from .engine import WHY_CHARS_MAX, ContainerTrouble, refusing

REPOSITORY, TAG = "localhost/gpufleet-trial", "1"
PROGRAM = "/trial"
SECONDS_MAX = 30
"""A trial container that has not ended after so long counts as one that the engine cannot start."""

BASE = 0x400000
HEADER_BYTES = 64 + 56

_OF_MACHINE = {
    # mov edi, 0; mov eax, 60 (exit); syscall
    "x86_64": (62, bytes.fromhex("bf00000000b83c0000000f05")),
    # mov x0, 0; mov x8, 93 (exit); svc 0
    "aarch64": (183, bytes.fromhex("000080d2a80b80d2010000d4")),
}
"""The machine's number in an ELF header, and instructions that exit with 0."""


def program_of(machine: str) -> bytes | None:
    """A static program that exits with 0; None for a machine that is not known here."""
    known = _OF_MACHINE.get(machine)
    if known is None:
        return None
    number, code = known
    size = HEADER_BYTES + len(code)
    ident = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
    header = struct.pack("<16sHHIQQQIHHHHHH", ident, 2, number, 1, BASE + HEADER_BYTES, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, BASE, BASE, size, size, 0x1000)
    return header + segment + code


def image_of(program: bytes) -> bytes:
    """A tar of an image with this program alone."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        about = tarfile.TarInfo(PROGRAM.lstrip("/"))
        about.size, about.mode = len(program), 0o755
        tar.addfile(about, io.BytesIO(program))
    return packed.getvalue()


def problem_of_trial(client: Any, labels: Mapping[str, str], machine: Callable[[], str] = platform.machine) -> str:
    """Start one container with these labels and remove it and its image; why that failed, empty where it did not."""
    program = program_of(machine())
    if program is None:
        return ""
    try:
        with refusing(RefusalReason.NO_ENGINE, "it starts no containers"):
            return _tried(client, program, labels)
    except ContainerTrouble as trouble:
        return trouble.refusal.detail


def _tried(client: Any, program: bytes, labels: Mapping[str, str]) -> str:
    # Podman gives an image that it imports no name, whatever it is asked; both engines answer with its id.
    answer = client.import_image_from_data(image_of(program), repository=REPOSITORY, tag=TAG)
    image = json.loads(answer.splitlines()[-1]).get("status", "")
    if not image.startswith("sha256:"):
        return f"it imports no image: {' '.join(answer.split())[:WHY_CHARS_MAX]}"
    try:
        container = client.create_container(image, command=[PROGRAM], network_disabled=True, labels=dict(labels))["Id"]
        try:
            client.start(container)
            code = client.wait(container, timeout=SECONDS_MAX).get("StatusCode")
        finally:
            client.remove_container(container, force=True, v=True)
    finally:
        client.remove_image(image, force=True)
    return "" if code == 0 else f"it starts no containers: one that exits with 0 exited with {code}"
