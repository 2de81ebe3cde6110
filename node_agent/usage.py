"""What each attempt uses, from its allocation to its end: readings of its devices and of its processes, summed up.

Readings of devices are taken out of the source at every tick and beat, and when an attempt begins or ends, so that each
reading counts for exactly those attempts that held the device when it was made, and for one beat. Of a device that jobs
share each of them is shown all of it.

Each sum is written down now and then, and when the agent leaves, so that the next start of the agent goes on with it:
one that is killed loses the readings of a few seconds and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpufleet.v1 import node_agent_pb2, node_pb2

from gpufleet.devices.device import Device, DeviceSource
from gpufleet.devices.kept_tallies import copy_of, from_json, to_json
from gpufleet.devices.process_tree import read_tree
from gpufleet.devices.statistics import series_message
from gpufleet.devices.tally import (
    COUNTERS,
    SERIES_COUNTERS,
    AttemptTally,
    DeviceTally,
    ProcessTally,
    Series,
    Tally,
    TreeReading,
    begun,
)
from gpufleet.jobs.run_protos import key_to_proto
from gpufleet.jobs.runs import RankKey

from . import wire
from .core.outcome import AttemptView
from .keeper.linux import boottime_us

_log = logging.getLogger(__name__)

TOLD_PER_BEAT_MAX = 256
"""Attempts whose use a beat tells; of more the oldest are told."""

SHORTEST_TICK_SECONDS = 0.05

KEPT_EVERY_SECONDS, KEPT_EVERY_SECONDS_EACH = 10.0, 0.2
"""How often a sum is written down: every 10 s, or more seldom where more than 50 attempts run."""

KEPT_PER_TICK_MAX = 8
"""Sums that are written down at one tick, those first whose turn has come for longest."""

NOTED_UUIDS_CHARS_MAX = 1_500
"""Within the keeper's bound of a note, beside an origin. Some 35 real GPUs fit; more are noted by their indices."""

NOTE = re.compile(
    r"(uuids=(?P<uuids>[^ ]*)|devices=(?P<indices>[0-9,]*)) sampling_us=(?P<sampling_us>[0-9]*)"
    r"( origin=[^ ]*)?( slot=[^ ]*)?( trace=.*)?"
)
"""The note of a launch, for the next start of the agent: its devices, and how often they are read.

They are named by UUID, for an index belongs to another device when one of them is gone. Indices are read as well:
agents of before noted these, and so does a launch with more UUIDs than fit.
"""


def note_of(uuids: Iterable[str], devices: dict[str, Device], sampling_us: int | None = None) -> str:
    """What a launch notes of its devices."""
    held = [devices[uuid] for uuid in uuids if uuid in devices]
    named = "uuids=" + ",".join(device.uuid for device in held)
    if len(named) > NOTED_UUIDS_CHARS_MAX:
        named = "devices=" + ",".join(str(device.index) for device in held)
    return f"{named} sampling_us={'' if sampling_us is None else sampling_us}"


class Usages:
    """The tallies of one node's attempts. `set_interval` is told how often to read the devices, None: nothing runs.

    `top_of` answers below which process all of a rank's are, by its leader: of one in a container another than that.
    """

    def __init__(
        self,
        source: DeviceSource,
        *,
        tick_seconds: Callable[[], float],
        set_interval: Callable[[float | None], None],
        read: Callable[[int], TreeReading | None] = read_tree,
        top_of: Callable[[RankKey, int], int | None] = lambda key, leader: leader,
        clock_us: Callable[[], int] = boottime_us,
        records: UsageRecords | None = None,
    ) -> None:
        self._source = source
        self._records = records
        self._kept_us: dict[RankKey, int] = {}
        self._cannot_keep = False
        self._devices = {device.uuid: device for device in source.list()}
        self._tick_seconds = tick_seconds
        self._set_interval = set_interval
        self._interval_seconds: float | None = None
        self._read = read
        self._top_of = top_of
        self._clock_us = clock_us
        self._since_beat: dict[str, DeviceTally] = {}
        self._tallies: dict[RankKey, AttemptTally] = {}
        self._leaders: dict[RankKey, int] = {}
        self._is_busy = asyncio.Event()

    @property
    def interval_seconds(self) -> float | None:
        """How often what runs is read, as the one wants that wants it most often; None when nothing runs."""
        live = [tally.sampling_us for tally in self._tallies.values() if tally.ended_us is None]
        own = self._tick_seconds()
        return min((own if each is None else each / 1e6 for each in live), default=None)

    def adopt(self, views: Iterable[AttemptView]) -> None:
        """Forget what an earlier start of the agent wrote down of attempts that no keeper knows any more."""
        with self._keeping():
            if self._records is not None:
                self._records.drop_others([view.key for view in views])

    def expect(self, key: RankKey, uuids: Iterable[str], sampling_us: int | None = None) -> None:
        """These devices are a rank's from now on; it is about to be launched, perhaps once more."""
        if key in self._tallies:
            return
        self._collect()
        self._tallies[key] = begun(self._clock_us(), [uuid for uuid in uuids if uuid in self._devices], sampling_us)
        self._look_busy()

    def see(self, view: AttemptView) -> None:
        """Take in what a keeper says of a rank: that it runs, or how it ended."""
        if view.key not in self._tallies:
            kept = self._read_kept(view.key)
            if view.end is not None and kept is None:
                return  # an earlier agent watched it, and nobody knows any more what it saw
            self._collect()
            self._tallies[view.key] = kept or begun(view.started_us or self._clock_us(), *self._noted(view.note))
            self._look_busy()
        tally = self._tallies[view.key]
        if view.end is None and view.pid is not None:
            self._leaders[view.key] = view.pid
        elif view.end is not None and tally.ended_us is None:
            self._collect()
            tally.ended_us = view.end.ended_us or self._clock_us()
            tally.processes.cpu_seconds = max(tally.processes.cpu_seconds, view.end.cpu_us / 1e6)
            self._leaders.pop(view.key, None)
            self._look_busy()

    def forget(self, key: RankKey) -> None:
        """Its use is stored, or it was never begun."""
        self._tallies.pop(key, None)
        self._leaders.pop(key, None)
        self._kept_us.pop(key, None)
        with self._keeping():
            if self._records is not None:
                self._records.end(key)
        self._look_busy()

    def close(self) -> None:
        """Write down all sums for the next start of the agent."""
        self._collect()
        for key, tally in self._tallies.items():
            with self._keeping():
                if self._records is not None:
                    self._records.write(key, tally)

    def of(self, key: RankKey) -> node_agent_pb2.AttemptUsage | None:
        """What a rank used so far, or until its end with the course of it; None when nothing was read of it."""
        tally = self._tallies.get(key)
        if tally is None or not _has_readings(tally):
            return None
        usage = usage_to_proto(key, tally, self._clock_us())
        for device in usage.devices if tally.ended_us is not None else ():
            device.series.CopyFrom(series_message(tally.series.get(device.uuid, Series())))
        return usage

    def take_beat(self) -> tuple[dict[str, DeviceTally], list[node_agent_pb2.AttemptUsage]]:
        """The readings since the last beat by device, and what each rank that has not ended used so far."""
        self._collect()
        since, self._since_beat = self._since_beat, {}
        return since, list(self._told())

    async def run(self) -> None:
        """Read what runs, once a tick, for ever."""
        while True:
            await self._is_busy.wait()
            await asyncio.sleep(max(SHORTEST_TICK_SECONDS, self.interval_seconds or 0.0))
            self._collect()
            leaders = dict(self._leaders)
            try:
                readings = await asyncio.to_thread(self._read_all, leaders)
            except Exception:
                # What cannot be read of /proc costs figures, and no job.
                _log.exception("reading the processes of attempts failed")
                continue
            now_seconds = time.monotonic()
            for key, reading in readings.items():
                tally = self._tallies.get(key)
                if tally is not None and tally.ended_us is None and reading is not None:
                    tally.processes.take(reading, now_seconds)
            await self._keep_some()

    async def _keep_some(self) -> None:
        """Write down the sums of those whose turn it is."""
        records, now_us = self._records, self._clock_us()
        if records is None:
            return
        every_us = round(1e6 * max(KEPT_EVERY_SECONDS, KEPT_EVERY_SECONDS_EACH * len(self._tallies)))
        read = (key for key, tally in self._tallies.items() if tally.ended_us is None and _has_readings(tally))
        due = [key for key in read if now_us >= self._kept_us.get(key, -every_us) + every_us]
        for key in sorted(due, key=lambda each: self._kept_us.get(each, 0))[:KEPT_PER_TICK_MAX]:
            tally = self._tallies.get(key)
            if tally is not None:
                self._kept_us[key] = now_us
                with self._keeping():
                    await asyncio.to_thread(records.write, key, copy_of(tally))
                    if key not in self._tallies:  # it was forgotten meanwhile
                        records.end(key)

    def _read_kept(self, key: RankKey) -> AttemptTally | None:
        with self._keeping():
            return None if self._records is None else self._records.read(key)
        return None

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        """What cannot be written down or read costs figures after a restart, and no job; it is said once."""
        try:
            yield
        except OSError as problem:
            if not self._cannot_keep:
                _log.warning("what attempts used is not kept for a restart of the agent: %s", problem)
            self._cannot_keep = True

    def _read_all(self, leaders: dict[RankKey, int]) -> dict[RankKey, TreeReading | None]:
        tops = ((key, self._top_of(key, pid)) for key, pid in leaders.items())
        return {key: None if pid is None else self._read(pid) for key, pid in tops}

    def _collect(self) -> None:
        """Credit what the devices told since the last time: to the beat, and to who holds each of them now."""
        drained, now_us = self._source.drain(), self._clock_us()
        for uuid, tally in drained.items():
            self._since_beat.setdefault(uuid, DeviceTally()).add(tally)
        for attempt in self._tallies.values():
            if attempt.ended_us is None:
                for uuid in attempt.devices.keys() & drained.keys():
                    attempt.devices[uuid].add(drained[uuid])
                    attempt.series.setdefault(uuid, Series()).take(now_us - attempt.begun_us, drained[uuid])

    def _told(self) -> Iterator[node_agent_pb2.AttemptUsage]:
        now_us = self._clock_us()
        live = [(key, tally) for key, tally in self._tallies.items() if tally.ended_us is None and _has_readings(tally)]
        for key, tally in live[:TOLD_PER_BEAT_MAX]:
            yield usage_to_proto(key, tally, now_us)

    def _look_busy(self) -> None:
        interval_seconds = self.interval_seconds
        if interval_seconds is None:
            self._is_busy.clear()
        else:
            self._is_busy.set()
        if interval_seconds != self._interval_seconds:
            self._interval_seconds = interval_seconds
            self._set_interval(interval_seconds)

    def _noted(self, note: str) -> tuple[list[str], int | None]:
        """The devices of a launch by its note, and how often it wants to be read."""
        noted = NOTE.fullmatch(note)
        if noted is None:
            return [], None
        sampling_us = int(noted["sampling_us"]) if noted["sampling_us"] else None
        if noted["uuids"] is not None:
            return [uuid for uuid in noted["uuids"].split(",") if uuid in self._devices], sampling_us
        indices = noted["indices"].split(",")
        return [uuid for uuid, device in self._devices.items() if str(device.index) in indices], sampling_us


def _has_readings(tally: AttemptTally) -> bool:
    return tally.sample_count > 0 or tally.processes.memory_bytes.count > 0


def usage_to_proto(key: RankKey, tally: AttemptTally, now_us: int) -> node_agent_pb2.AttemptUsage:
    """What a rank used, for the wire; a counter that nobody read stays absent."""
    processes = tally.processes
    return node_agent_pb2.AttemptUsage(
        key=key_to_proto(key),
        duration=wire.duration(tally.span_us(now_us)),
        sample_count=tally.sample_count,
        devices=[_device_usage(uuid, each) for uuid, each in tally.devices.items() if each.count],
        processes=_process_usage(processes) if processes.memory_bytes.count else None,
    )


def _device_usage(uuid: str, tally: DeviceTally) -> node_agent_pb2.DeviceUsage:
    return node_agent_pb2.DeviceUsage(
        uuid=uuid,
        memory_total_bytes=tally.memory_total_bytes,
        energy_mj=None if tally.energy_mj is None else round(tally.energy_mj),
        idle_count=tally.idle_count,
        **_summaries(tally, SERIES_COUNTERS),
    )


def _process_usage(tally: ProcessTally) -> node_agent_pb2.ProcessUsage:
    return node_agent_pb2.ProcessUsage(
        cpu_seconds=tally.cpu_seconds,
        cpu_percent=summary_of(tally.cpu_percent),
        memory_bytes=summary_of(tally.memory_bytes),
        read_bytes=tally.read_bytes,
        write_bytes=tally.write_bytes,
    )


def device_summary(tally: DeviceTally) -> node_pb2.DeviceSummary:
    """The readings of a beat, for the wire."""
    return node_pb2.DeviceSummary(
        span=wire.duration(round(tally.span_seconds * 1e6)),
        throttle_reasons=tally.throttle_reasons,
        **_summaries(tally, COUNTERS),
    )


def _summaries(tally: DeviceTally, counters: Iterable[str]) -> dict[str, Any]:
    return {name: summary_of(tally.counters.get(name, Tally())) for name in counters}


def summary_of(tally: Tally) -> node_pb2.Summary | None:
    """One counter; None when nobody read it."""
    if not tally.count:
        return None
    return node_pb2.Summary(min=tally.low, max=tally.high, mean=tally.mean, last=tally.last, count=tally.count)


UNFINISHED = ".new"


class UsageRecords:
    """What is written down: a file an attempt, `usages/<job.attempt.rank>`. Every method may raise OSError.

    A file is put in place as a whole: who is killed in the middle leaves the one from before. Like the keeper's records
    these files must survive the agent, not the machine: nothing waits for the disk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, key: RankKey, tally: AttemptTally) -> None:
        """Put a tally in place of the one before. Takes some 20 ms with many points: for a thread, and a copy."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        unfinished = self._folder / f"{key.name}{UNFINISHED}"
        unfinished.write_text(json.dumps(to_json(tally), separators=(",", ":")))
        unfinished.replace(self._folder / key.name)

    def read(self, key: RankKey) -> AttemptTally | None:
        """The tally of an attempt; None where there is none, or nothing that could be one."""
        try:
            return from_json(json.loads((self._folder / key.name).read_text()))
        except FileNotFoundError:
            return None
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
            return None  # a disk that was full, a machine that lost power, or another version wrote it

    def end(self, key: RankKey) -> None:
        """Nothing of it is needed any more."""
        (self._folder / key.name).unlink(missing_ok=True)

    def drop_others(self, keys: Collection[RankKey]) -> None:
        """Delete what is of no attempt that anybody knows of, and what was never finished."""
        known = {key.name for key in keys}
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            if path.name not in known:
                path.unlink(missing_ok=True)
