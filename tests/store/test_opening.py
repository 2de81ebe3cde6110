"""URLs that name no store, and tables that are exactly what the schema says."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from scheduler.store import migrations
from scheduler.store.errors import StoreTooOld, StoreUrlInvalid
from scheduler.store.opening import open_store, parse_url
from scheduler.store.postgres import connect_arguments
from scheduler.store.schema import belongs_to, metadata
from tests.store.samples import behind_its_back, job, submit


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("scheduler.db", "'scheduler.db' is not a URL: write sqlite:///"),
        ("sqlite://", "names no file, and what is not in a file is lost"),
        ("sqlite:///:memory:", "names no file"),
        ("mysql://root@host/x", "'mysql' is no database that the store can be in: write sqlite:///"),
    ],
)
def test_a_url_that_names_no_store_is_answered_with_one_that_would(url: str, complaint: str) -> None:
    with pytest.raises(StoreUrlInvalid, match=complaint):
        open_store(url)


@pytest.mark.parametrize(
    "url", ["postgresql:/u:s3cret@host/db", "postgresql://u:s3cret@host:port/db", "postgresql://u:s3@cret@host/db"]
)
def test_of_a_url_that_is_none_no_password_is_shown(url: str) -> None:
    with pytest.raises(StoreUrlInvalid) as refused:
        open_store(url)
    assert ":***@host" in str(refused.value)
    assert "s3" not in str(refused.value) and "cret" not in str(refused.value)


def test_a_url_may_name_several_servers_as_libpq_takes_them() -> None:
    parsed = parse_url("postgresql://u:pw@one:5432,two:5433/fleet?target_session_attrs=read-write")
    arguments = connect_arguments(parsed, "me")
    assert (arguments["host"], arguments["port"], arguments["dbname"]) == ("one,two", "5432,5433", "fleet")
    assert (arguments["password"], arguments["target_session_attrs"]) == ("pw", "read-write")
    assert parse_url("postgresql://one,two/fleet").query["host"] == ("one", "two")


def test_the_migrations_make_the_tables_of_the_schema(url: str) -> None:
    with closing(open_store(url)) as store, store._database.engine.connect() as connection:
        kind = store.kind
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": migrations.REVISION_TABLE,
                "compare_type": True,
                "include_object": lambda it, name, type_, reflected, other: type_ != "table" or belongs_to(it, kind),
            },
        )
        assert compare_metadata(context, metadata) == []


def test_the_newest_revision_is_the_one_the_program_names() -> None:
    scripts = ScriptDirectory(str(migrations.FOLDER))
    assert scripts.get_heads() == [migrations.NEWEST_REVISION]
    assert scripts.get_bases() == [migrations.FIRST_REVISION]


LATER_REVISION = """
import sqlalchemy as sa
from alembic import op
revision, down_revision, branch_labels, depends_on = "9000", "{newest}", None, None
def upgrade():
    op.add_column("meta", sa.Column("motto", sa.Text, nullable=False, server_default="none"))
"""


def test_a_later_revision_brings_a_store_up_to_date_and_keeps_what_it_holds(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(open_store(url)) as store:
        store.commit(submit(1, job(1)))
    folder = tmp_path / "migrations"
    shutil.copytree(migrations.FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / "9000_motto.py").write_text(LATER_REVISION.format(newest=migrations.NEWEST_REVISION))
    monkeypatch.setattr(migrations, "FOLDER", folder)
    monkeypatch.setattr(migrations, "NEWEST_REVISION", "9000")
    for term in (2, 3):
        with closing(open_store(url)) as store:
            assert (store.term, list(store.load())) == (term, [job(1)])
        assert behind_its_back(url, "SELECT motto FROM meta") == [("none",)]
    assert behind_its_back(url, "SELECT version_num FROM schema_revision") == [("9000",)]


def test_a_store_of_before_lineages_keeps_what_it_holds_and_each_start_has_one_of_its_own(url: str) -> None:
    with closing(open_store(url)) as store:
        store.commit(submit(1, job(1)))
        of_rows = ["output_chunk", "output_time"] if store.kind == "postgresql" else []
    if of_rows:
        behind_its_back(url, "DROP TABLE scheduler_run, key_fingerprint")
        behind_its_back(url, "ALTER TABLE output_chunk DROP COLUMN checksum")
    for table in of_rows:
        behind_its_back(url, f"ALTER TABLE {table} DROP COLUMN lineage")  # and the key that it is part of
    if of_rows:
        chunk = "(job_id, attempt, rank, stream, start, segment, is_head, data) VALUES (1, 1, 0, 1, 0, 0, true, 'abc')"
        behind_its_back(url, f"INSERT INTO output_chunk {chunk}")
    behind_its_back(url, "DROP TABLE lineage")
    behind_its_back(url, "DROP TABLE audit")
    behind_its_back(url, "ALTER TABLE meta DROP COLUMN store_id")
    behind_its_back(url, "UPDATE schema_revision SET version_num = '0004'")
    for table, last in (("output_chunk", "start"), ("output_time", "at_us")) if of_rows else ():
        key = f"(job_id, attempt, rank, stream, {last})"
        behind_its_back(url, f"ALTER TABLE {table} ADD CONSTRAINT pk_{table} PRIMARY KEY {key}")
    seen = []
    for _ in range(2):
        with closing(open_store(url)) as store:
            assert list(store.load()) == [job(1)]
            seen.append((store.store_id, store.term, store.lineage, [each.term for each in store.starts]))
    (first_id, first_term, first_lineage, _), (second_id, second_term, second_lineage, terms) = seen
    assert (first_term, second_term, terms) == (2, 3, [2, 3])
    assert first_id == second_id and len({first_id, first_lineage, second_lineage}) == 3
    if of_rows:
        assert behind_its_back(url, "SELECT lineage, data FROM output_chunk") == [("", b"abc")]


@pytest.mark.parametrize("revision", ["0001", "0002", "0003"])
def test_a_store_of_before_the_first_release_is_refused_with_what_to_do_and_left_alone(url: str, revision: str) -> None:
    with closing(open_store(url)) as store:
        store.commit(submit(1, job(1)))
    behind_its_back(url, f"UPDATE schema_revision SET version_num = '{revision}'")
    for _ in range(2):  # the refused opening has let go of the lock
        with pytest.raises(StoreTooOld, match=rf"revision {revision}, .* another --data folder or database$"):
            open_store(url)
    assert behind_its_back(url, "SELECT term FROM meta") == [(1,)]
    behind_its_back(url, f"UPDATE schema_revision SET version_num = '{migrations.NEWEST_REVISION}'")
    with closing(open_store(url)) as store:
        assert list(store.load()) == [job(1)]


def test_a_start_with_nothing_to_migrate_migrates_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store(url).close()
    monkeypatch.setattr(migrations, "FOLDER", None)
    with closing(open_store(url)) as store:
        assert store.term == 2
