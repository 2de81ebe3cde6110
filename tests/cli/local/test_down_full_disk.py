"""`down` where the disk is full: what runs is stopped all the same."""

from __future__ import annotations

import subprocess
from pathlib import Path

from cli.local.folders import Folders, read_record, started, write_record
from cli.local.folders import Record as Running
from cli.local.stopping import stop_programs
from tests.e2e.disks import small_disk


def test_a_disk_without_room_for_the_record_keeps_nothing_running(tmp_path: Path) -> None:
    with small_disk(1_000_000) as disk:
        folders = Folders(record=disk.path, scheduler=tmp_path, agent=tmp_path, gateway=tmp_path)
        process = subprocess.Popen(["sleep", "600"])
        try:
            record = Running(
                address="127.0.0.1:1",
                scheduler_data=str(tmp_path),
                agent_data=str(tmp_path),
                node="",
                programs=(started("scheduler", process.pid),),
            )
            write_record(folders.record, record)
            disk.fill()
            said: list[str] = []
            stop_programs(record, folders, ends_jobs=True, say=said.append)
            assert process.wait(60) == -15 and said == ["stopping the scheduler"]
            assert read_record(folders.record) is None
            assert [file.name for file in disk.path.iterdir()] == ["ballast"], "nothing half-written is left"
        finally:
            process.kill()
            process.wait()
