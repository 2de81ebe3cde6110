"""What an agent and its keeper say to each other, by a run of both: `python keeper_talk.py TARGET`.

Run by the programs of a release: `keep.py` does for the tree that it stands in. Of 0.1.0 it was run later, on a copy of
its tree (`git archive` of what `0.1.0/commit` names), with PYTHONPATH=TREE:TREE/gen, so that keeper and agent were both
of that commit; this file was the only one of a later tree.

Two agents come one after the other, as when one is replaced while jobs run. Job 1 prints, waits and ends with 3; job 2
reads what is typed, and is stopped. FOLDER and BOOT_ID stand for the folder and the machine of the run.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpufleet.jobs.runs import InputMode, JobId, RankKey, StopCause
from node_agent.core.launch import Launch, Process
from node_agent.core.outcome import Offsets
from node_agent.core.typed import InputPiece
from node_agent.keeper import connection
from node_agent.keeper.client import Keepers
from node_agent.keeper.events import AttemptEnded, AttemptStarted, SpoolChanged
from node_agent.keeper.linux import boot_id, boottime_us

FILE = "keeper.jsonl.gz"
FOLDER, BOOT_ID = "/FOLDER", "boot-id"
BUILD = "0.1.0"
AGENT, KEEPER = "agent", "keeper"
WAITS = "echo before; read -r line < gate; echo after; exit 3"
READS = 'read -r line; echo "got $line"; exec sleep 1000'
LIMIT_US = 3_600_000_000
WRITER = "session-1"
Json = dict[str, Any]


def launch(number: int, folder: Path, script: str, mode: InputMode | None = None) -> Launch:
    """One of the two jobs."""
    process = Process(argv=("/bin/sh", "-c", script), env={"PATH": "/usr/bin:/bin"}, cwd=str(folder), input=mode)
    return Launch(key=RankKey(JobId(number), 1, 0), process=process, heartbeat_sent_us=boottime_us())


async def first_agent(keepers: Keepers, folder: Path) -> None:
    """It starts both jobs, hears that they run, types to one, and leaves. It takes note of one start only."""
    await keepers.set_fence(boottime_us())
    waits, reads = launch(1, folder, WAITS), launch(2, folder, READS, InputMode.PIPE)
    assert await keepers.check(waits) is None
    await keepers.launch(waits)
    assert isinstance(await keepers.next_event(), AttemptStarted)
    await keepers.launch(reads)
    started = await keepers.next_event()
    assert isinstance(started, AttemptStarted)
    await keepers.acknowledge(started)
    await keepers.wait_for_output(waits.key, Offsets())
    await keepers.begin_input(reads.key, WRITER)
    await keepers.type(reads.key, WRITER, InputPiece(0, b"hello\n"))
    await keepers.wait_for_output(reads.key, Offsets())
    await keepers.set_time_limit(reads.key, LIMIT_US)
    await keepers.signal(reads.key, signal.SIGCONT)


async def second_agent(keepers: Keepers, folder: Path) -> list[AttemptEnded]:
    """It finds both running, is told again what nobody took note of, and sees both to their ends, which it answers."""
    await keepers.set_fence(boottime_us())
    waits, reads = await keepers.inventory()
    started = await keepers.next_event()
    assert isinstance(started, AttemptStarted) and started.key == waits.key
    await keepers.acknowledge(started)
    (folder / "gate").write_text("go\n")
    ends = [await _seen_to_its_end(keepers, waits.key)]
    await keepers.stop(reads.key, StopCause.CANCELLED, 0)
    ends.append(await _seen_to_its_end(keepers, reads.key))
    return ends


async def _seen_to_its_end(keepers: Keepers, key: RankKey) -> AttemptEnded:
    ended = await keepers.next_event()
    while isinstance(ended, SpoolChanged):
        ended = await keepers.next_event()
    assert isinstance(ended, AttemptEnded) and ended.key == key
    await keepers.acknowledge(ended)
    await keepers.wait_for_output(key, Offsets())
    await keepers.output_synced(key, ended.end.output_ends)
    await keepers.forget(key)
    return ended


class Notes:
    """Everything that is said, in its order, by which agent or to which."""

    def __init__(self, folder: Path) -> None:
        self.lines: list[str] = []
        self.agent = 0
        self._folder = str(folder)

    def note(self, who: str, message: Json) -> None:
        """Take one message down."""
        text = json.dumps({"agent": self.agent, "by": who, "message": message}, sort_keys=True)
        self.lines.append(text.replace(self._folder, FOLDER).replace(boot_id(), BOOT_ID))

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Every connection of this process is noted inside the block."""
        # The names by which the agent's side knows both.
        module: Any = connection
        notes, pack, unpacker = self, module.pack, module.Unpacker

        def noted(message: Json) -> bytes:
            notes.note(AGENT, message)
            framed: bytes = pack(message)
            return framed

        class Noted(unpacker):  # type: ignore[misc, valid-type]
            def feed(self, data: bytes) -> list[Json]:
                messages: list[Json] = super().feed(data)
                for message in messages:
                    notes.note(KEEPER, message)
                return messages

        module.pack = noted
        module.Unpacker = Noted
        try:
            yield
        finally:
            module.pack, module.Unpacker = pack, unpacker


async def talk(folder: Path, notes: Notes, command: tuple[str, ...] | None) -> None:
    """Both agents, and the end of the keeper, which `command` starts, or that of this very program."""
    os.mkfifo(folder / "gate")
    notes.agent = 1
    async with await Keepers.open(folder / "state", build=BUILD, command=command) as keepers:
        await first_agent(keepers, folder)
    notes.agent = 2
    async with await Keepers.open(folder / "state", build=BUILD, command=command) as keepers:
        await second_agent(keepers, folder)
        refusal = await keepers.shutdown()
        assert refusal is None, refusal


async def talk_of(folder: Path, command: tuple[str, ...] | None = None) -> list[Json]:
    """What both say, in an empty folder."""
    notes = Notes(folder)
    with notes.listening():
        await talk(folder, notes, command)
    return [json.loads(line) for line in notes.lines]


def main(target: str) -> None:
    """Run both and keep what they said."""
    with tempfile.TemporaryDirectory(prefix="keeper-talk-") as made:
        lines = asyncio.run(talk_of(Path(made)))
    text = "".join(f"{json.dumps(line, sort_keys=True)}\n" for line in lines)
    with (Path(target) / FILE).open("wb") as file, gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as packed:
        packed.write(text.encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
