"""What a launch says of its job: it is read as it was written, of this attempt on this node, and nothing else is."""

from __future__ import annotations

import base64
from dataclasses import replace

from scheduler.origins import ARGV_CHARS_MAX, ORIGIN_CHARS_MAX, SIGNATURE_BYTES, Origins
from scheduler.state.attempts import PlacedDevice, Placement
from scheduler.state.commands import LaunchAttempt
from scheduler.state.gap import digest_of_argv
from scheduler.state.ids import DeviceUuid, JobId, NodeName, RankKey, UserName
from scheduler.state.units import Instant
from tests.core.fleet import spec

KEY = RankKey(JobId(41), 2, 0, "1111111111111111")
N1, N2 = NodeName("n1"), NodeName("n2")
ORIGINS = Origins(b"k" * 32)


def launch(*argv: str, devices: int = 8) -> LaunchAttempt:
    placed = tuple(PlacedDevice(index=each, uuid=DeviceUuid(f"GPU-{each:032x}"), name="GPU") for each in range(devices))
    placement = Placement(node=N1, agent_id="a", boot_id="b", devices=placed, cpus=4, memory_bytes=8)
    return LaunchAttempt(
        node=N1,
        key=KEY,
        spec=spec(argv=argv or ("true",)),
        user=UserName("alice"),
        placement=placement,
        fence=None,
        submitted_at=Instant(5),
        placed_at=Instant(7),
    )


def test_an_origin_is_read_as_it_was_written() -> None:
    command = launch("python", "train.py", "ü" * 100)
    text = ORIGINS.text(command)
    assert " " not in text and len(text) < 2_000
    read = ORIGINS.read(text, KEY, N1)
    assert read is not None and read.is_of(command.spec.argv) and not read.is_of(("python", "train.py"))
    assert (read.user, read.submitted_at, read.placed_at, read.argv) == ("alice", 5, 7, command.spec.argv)
    assert read.placement == command.placement


def test_of_another_attempt_rank_lineage_node_or_key_it_is_none() -> None:
    text = ORIGINS.text(launch())
    others = (
        (replace(KEY, job=JobId(42)), N1),
        (replace(KEY, attempt=3), N1),
        (replace(KEY, rank=1), N1),
        (replace(KEY, lineage="2222222222222222"), N1),
        (KEY, N2),
    )
    assert [ORIGINS.read(text, key, node) for key, node in others] == [None] * 5
    assert Origins(b"x" * 32).read(text, KEY, N1) is None


def test_what_a_node_makes_up_or_changes_is_none() -> None:
    sealed = base64.urlsafe_b64decode(ORIGINS.text(launch()))
    changed = [bytes([*sealed[:at], sealed[at] ^ 1, *sealed[at + 1 :]]) for at in (0, SIGNATURE_BYTES, len(sealed) - 1)]
    texts = ["", "x", "ü", "=" * 50, "A" * (ORIGIN_CHARS_MAX + 1), *map(_text, (b"", sealed[:-1], *changed))]
    assert [ORIGINS.read(text, KEY, N1) for text in texts] == [None] * len(texts)


def test_long_arguments_are_cut_and_of_very_many_devices_nothing_is_told() -> None:
    argv = ("python", "x" * 100_000)
    read = ORIGINS.read(ORIGINS.text(launch(*argv)), KEY, N1)
    assert read is not None and sum(map(len, read.argv)) == ARGV_CHARS_MAX and read.argv_digest == digest_of_argv(argv)
    assert ORIGINS.text(launch(devices=3_000)) == ""


def _text(sealed: bytes) -> str:
    return base64.urlsafe_b64encode(sealed).decode()
