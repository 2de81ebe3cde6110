"""URLs that name no store, and tables that are exactly what the schema says."""

from __future__ import annotations

from contextlib import closing

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from scheduler.store import migrations
from scheduler.store.errors import StoreUrlInvalid
from scheduler.store.opening import open_store
from scheduler.store.schema import belongs_to, metadata


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
    assert ScriptDirectory(str(migrations.FOLDER)).get_heads() == [migrations.NEWEST_REVISION]


def test_a_start_with_nothing_to_migrate_migrates_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store(url).close()
    monkeypatch.setattr(migrations, "FOLDER", None)
    with closing(open_store(url)) as store:
        assert store.term == 2
