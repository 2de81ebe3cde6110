"""An `up` of which something has died: what is started again, with which options, and when nothing is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cli.local.folders import RECORD_FILE, Folders, Record, Started, folders_of, read_record, started, write_record
from cli.local.gateway import Gateway
from cli.local.up import bring_up
from cli.local.up_options import NAMES, UpOptions, at_the_same_addresses, missing_of, options_of_before
from gpufleet.errors import GpufleetError, Reason


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return folders_of(tmp_path / "fleet")


@pytest.fixture
def dead() -> Started:
    """A program that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        return Started("gateway", process.pid, 0)


def record_of(*programs: Started, options: UpOptions | None = None) -> Record:
    written = {} if options is None else options.written()
    return Record(
        address="127.0.0.1:4711", scheduler_data="", agent_data="", node="n1", programs=programs, options=written
    )


def running(*names: str) -> list[Started]:
    """Programs that run: this process, by these names."""
    return [started(name, os.getpid()) for name in names]


def test_a_record_comes_back_as_it_was_and_one_of_before_can_be_read(folders: Folders) -> None:
    options = UpOptions(folders=folders, port=0, gateway=Gateway(port=0), virtual_gpus="2")
    record = replace(record_of(*running("scheduler"), options=options), by=started("up", os.getpid()))
    write_record(folders.record, record)
    assert read_record(folders.record) == record
    assert UpOptions.read(folders, record.options) == options
    file = folders.record / RECORD_FILE
    values = json.loads(file.read_text())
    del values["by"], values["options"]
    file.write_text(json.dumps(values))
    assert read_record(folders.record) == record_of(*running("scheduler"))


def test_what_is_missing_is_what_was_asked_for_and_does_not_run(folders: Folders, dead: Started) -> None:
    whole = UpOptions(folders=folders)
    assert missing_of(record_of(*running(*NAMES), options=whole), folders) == []
    assert missing_of(record_of(*running("scheduler", "agent"), dead, options=whole), folders) == ["gateway"]
    assert missing_of(record_of(*running("scheduler"), options=whole), folders) == ["agent", "gateway"], (
        "it was cut off"
    )
    less = replace(whole, with_agent=False, gateway=None)
    assert missing_of(record_of(*running("scheduler"), options=less), folders) == []
    assert missing_of(record_of(*running("scheduler"), dead), folders) == ["gateway"], "of before there were options"


def test_it_is_started_again_with_its_own_options_at_its_own_addresses(folders: Folders) -> None:
    was = UpOptions(folders=folders, port=0, gateway=Gateway(port=0), virtual_gpus="2")
    record = record_of(*running("scheduler"), options=was)
    for typed in (UpOptions(folders=folders), was):
        assert options_of_before(typed, record) == was
    with pytest.raises(GpufleetError, match="with other options") as caught:
        options_of_before(replace(was, virtual_gpus="1"), record)
    assert caught.value.reason is Reason.CONFLICT
    assert f"gpuctl up --data {folders.record}" in caught.value.next_step
    folders.gateway.mkdir(parents=True)
    folders.listening("gateway").write_text("127.0.0.1:4713\n")
    again = at_the_same_addresses(was, record)
    assert (again.port, again.virtual_gpus) == (4711, "2")
    assert again.gateway == Gateway(port=4713, given_grpc_port=None)


@pytest.mark.parametrize(
    ("names", "changes", "said"),
    [
        (NAMES, {}, "still runs"),
        (NAMES[:1], {"is_stopping": True}, "is being stopped"),
        (NAMES[:1], {"by": started("up", os.getpid())}, "is looked after by process"),
    ],
)
def test_nothing_is_started_beside_what_runs_starts_or_stops(
    folders: Folders, names: tuple[str, ...], changes: dict[str, bool | Started], said: str
) -> None:
    options = UpOptions(folders=folders)
    record = record_of(*running(*names), options=options)
    write_record(folders.record, replace(record, **changes))  # type: ignore[arg-type]
    with pytest.raises(GpufleetError, match=said) as caught:
        bring_up(options, is_detached=True)
    assert caught.value.reason is Reason.ALREADY_RUNNING
