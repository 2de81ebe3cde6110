"""Puts the rows of a whole store into a database that holds none, in one transaction of the caller's."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, column, insert, inspect, literal, select, table

from .codec import FORMAT, Codec
from .errors import StoreCorrupt, StoreTooNew, StoreTooOld
from .migrations import FIRST_REVISION, NEWEST_REVISION, revision_of, upgrade
from .reading import Meta, meta_of
from .snapshot import TABLES, rows_of
from .verify import contradictions

PROBLEMS_SHOWN_MAX = 3

IS_REVISION = re.compile(r"\d{4}")


class NotEmpty(Exception):
    """The database holds something; the message says what."""


def must_be_known(revision: str, stored_format: int, name: str) -> None:
    """Raise what keeps rows of such tables and payloads from being read here. Errors: StoreTooNew, StoreTooOld."""
    if IS_REVISION.fullmatch(revision) is None or revision > NEWEST_REVISION or stored_format > FORMAT:
        raise StoreTooNew(
            f"{name} is of a newer release (tables {revision}, format {stored_format};"
            f" this one knows {NEWEST_REVISION} and {FORMAT}): restore it with that release"
        )
    if revision < FIRST_REVISION:
        raise StoreTooOld(f"{name} is of before the first release (tables {revision})")


def must_be_empty(connection: Connection) -> None:
    """Raise NotEmpty where the database has rows of a store, whoever wrote them."""
    if revision_of(connection) is None:
        return
    there = set(inspect(connection).get_table_names())
    for name in (each.name for each in TABLES if each.name in there):
        if connection.execute(select(literal(1)).select_from(table(name)).limit(1)).first():
            raise NotEmpty(name)


def make_tables(connection: Connection, revision: str) -> None:
    """The tables of a revision, in a database without rows."""
    upgrade(connection, revision)


def put(connection: Connection, name: str, columns: Sequence[str], rows: Iterable[Sequence[Sequence[Any]]]) -> int:
    """Put rows, some at a time, into a table that has exactly these columns; how many. Errors: StoreCorrupt."""
    there = {each["name"] for each in inspect(connection).get_columns(name)}
    if there != set(columns) or len(columns) != len(there):
        raise StoreCorrupt(f"{name} has the columns {', '.join(sorted(there))}, not {', '.join(columns)}")
    statement = insert(table(name, *map(column, columns)))
    count = 0
    for some in rows:
        if any(len(row) != len(columns) for row in some):
            raise StoreCorrupt(f"{name}: a row does not have {len(columns)} values")
        connection.execute(statement, [dict(zip(columns, row, strict=True)) for row in some])
        count += len(some)
    return count


def bring_up_to_date(connection: Connection) -> Meta:
    """Bring the tables, rows and all, to the newest revision, and look whether they are a store.

    Errors: StoreCorrupt, naming what is wrong; StoreTooNew.
    """
    upgrade(connection)
    found = meta_of(connection)
    if found is None:
        raise StoreCorrupt("meta: 0 rows instead of one")
    problems = []
    for problem in contradictions(Codec(), found, lambda each: rows_of(connection, each)):
        problems.append(problem)
        if len(problems) > PROBLEMS_SHOWN_MAX:
            problems[-1] = "and more"
            break
    if problems:
        raise StoreCorrupt("; ".join(problems))
    return found
