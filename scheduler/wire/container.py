"""The container of a job, on the wire and checked. Whether a node allows the mounts, that node says."""

import posixpath
import re

from gpufleet.v1 import job_pb2

from gpufleet.errors import GpufleetError, invalid

from ..state.ids import SecretName
from ..state.specs import ContainerMount, ContainerSettings, EnvironmentTool
from .secret_fields import secret_name

IMAGE_CHARS_MAX = 500
IMAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]|[/:@](?![/:@.]))*")
"""What may be one: a registry's host and port, a path, a tag and a digest. All else of its form the engine knows."""

MOUNTS_MAX = 100
PATH_BYTES_MAX = 4096
TAKEN = ("/proc", "/sys", "/dev", "/run/gpufleet")
"""What a container has of its own; nothing of the node is shown there, or below it."""

PASSED_ON: frozenset[str] = frozenset()
"""Fields of ProcessSettings that the node passes on to a container's engine. A spec with any other one is refused."""

HOW = "write it as /data/sets, /data/sets:/data or /data/sets:/data:ro"


def container_of(spec: job_pb2.JobSpec, path: str) -> ContainerSettings | None:
    """The checked container; None for none. Errors: INVALID_ARGUMENT with the path of the field."""
    if not spec.HasField("container"):
        return None
    asked, path = spec.container, f"{path}.container"
    if not asked.image or len(asked.image) > IMAGE_CHARS_MAX or not IMAGE.fullmatch(asked.image):
        step = "name it as an engine is told, such as ubuntu:24.04 or nvcr.io/nvidia/pytorch:25.10-py3"
        raise invalid(f"{path}.image", f"{asked.image[:80]!r} is not the name of an image", next_step=step)
    _refuse_beside(spec, path.removesuffix(".container"))
    return ContainerSettings(
        image=asked.image,
        mounts=_mounts(asked, path),
        image_secret=secret_name(asked.image_secret, f"{path}.image_secret") if asked.image_secret else SecretName(""),
    )


def container_proto(container: ContainerSettings | None) -> job_pb2.ContainerSettings | None:
    """The container on the wire, in a spec and in a launch."""
    if container is None:
        return None
    return job_pb2.ContainerSettings(
        image=container.image,
        mounts=[
            job_pb2.ContainerMount(source=each.source, target=each.target, is_read_only=each.is_read_only)
            for each in container.mounts
        ],
        image_secret=container.image_secret,
    )


def _refuse_beside(spec: job_pb2.JobSpec, path: str) -> None:
    """What a container leaves no place for."""
    if spec.output_file:
        raise invalid(
            f"{path}.output_file",
            "is a file of the node, which a container does not have",
            next_step="leave out --output-file: gpuctl logs has what the job writes, or let it write into a --mount",
        )
    if spec.HasField("environment"):
        said = [f".{tool.value}" for tool in EnvironmentTool if getattr(spec.environment, tool.value)]
        raise invalid(
            f"{path}.environment{''.join(said[:1])}",
            "is made of the node's Python, and the job runs in a container, whose image has its own",
            next_step="leave out --setup, --requirements, --uv and --conda, and install it in the image; or --image",
        )
    for field, _ in spec.process.ListFields():
        if field.name not in PASSED_ON:
            raise invalid(
                f"{path}.process.{field.name}",
                "does not go with a container, whose engine starts its processes",
                next_step="leave it out, or the image",
            )


def _mounts(asked: job_pb2.ContainerSettings, path: str) -> tuple[ContainerMount, ...]:
    if len(asked.mounts) > MOUNTS_MAX:
        raise invalid(f"{path}.mounts", f"holds {len(asked.mounts):,}; at most {MOUNTS_MAX} are shown")
    found: dict[str, ContainerMount] = {}
    for number, each in enumerate(asked.mounts):
        field = f"{path}.mounts[{number}]"
        for name, text in (("source", each.source), ("target", each.target)):
            if (why := _trouble_with(text)) is not None:
                raise _wrong(f"{field}.{name}", why)
        if each.target == "/" or any(each.target == taken or each.target.startswith(f"{taken}/") for taken in TAKEN):
            raise _wrong(f"{field}.target", f"{each.target} is the container's own")
        if each.target in found:
            raise _wrong(f"{field}.target", f"{each.target} is the place of two mounts")
        found[each.target] = ContainerMount(source=each.source, target=each.target, is_read_only=each.is_read_only)
    return tuple(found.values())


def _trouble_with(text: str) -> str | None:
    if not text.startswith("/"):
        return f"{text[:200]!r} is not an absolute path"
    if len(text.encode()) > PATH_BYTES_MAX:
        return f"is longer than {PATH_BYTES_MAX:,} bytes"
    if any(ord(character) < 32 or ord(character) == 127 for character in text) or ":" in text:
        return f"{text[:200]!r} holds a colon or a control character"
    if posixpath.normpath(text) != text:
        return f"{text[:200]!r} holds an empty part, '.' or '..'"
    return None


def _wrong(path: str, why: str) -> GpufleetError:
    return invalid(path, why, next_step=HOW)
