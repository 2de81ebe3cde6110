"""The rows by which schedulers of one store know of each other, over a connection of their own.

It waits for no commit, and nothing that it writes waits for the disk: a row that a crash of the server takes back is
written again with the next beat.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict

import psycopg

from ..store.errors import StoreUnavailable
from ..store.opening import parse_url
from ..store.postgres import HOLDERS, LOCK_CLASS, connect_arguments
from ..store.server_state import takes_writes_nowhere
from .judging import RUNS_MAX, LeadingRole, Look, Run
from .keys import Fingerprint

FORGOTTEN_AFTER_SECONDS = 600
"""The row of a scheduler that was killed stays for so long, to be seen."""

ANSWER_SECONDS_MAX = 2
"""How long one question may take; a store that takes longer counts as one that does not answer."""

_OPTIONS = (
    f" -c statement_timeout={ANSWER_SECONDS_MAX}s -c lock_timeout={ANSWER_SECONDS_MAX}s -c synchronous_commit=off"
)

_CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

_HAS_TABLES = b"SELECT to_regclass('meta') IS NOT NULL, to_regclass('scheduler_run') IS NOT NULL"

_BEAT = f"""
INSERT INTO scheduler_run AS known (identity, host, pid, address, data_folder, version, role, term, sequence, beat,
    problem, since_us, beat_us)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, 1, %s, {_CLOCK}, {_CLOCK})
ON CONFLICT (identity) DO UPDATE SET address = excluded.address, role = excluded.role, term = excluded.term,
    sequence = excluded.sequence, problem = excluded.problem, beat = known.beat + 1, beat_us = excluded.beat_us,
    since_us = CASE WHEN known.role = excluded.role THEN known.since_us ELSE excluded.since_us END
""".encode()

_COLUMNS = tuple(Run.__dataclass_fields__)

_RUNS = f"""
SELECT {", ".join(_COLUMNS)}
FROM scheduler_run ORDER BY beat_us DESC, identity LIMIT {RUNS_MAX}
""".encode()

_META = f"SELECT max(term), max(record_seq), {_CLOCK} FROM meta".encode()

_FORGET = f"DELETE FROM scheduler_run WHERE beat_us < {_CLOCK} - %s".encode()

_END = b"""
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = %s AND datname = current_database() AND pid <> pg_backend_pid()
"""

_MAY_END = b"""
SELECT rolname, pg_has_role(activity.usesysid, 'USAGE')
    OR (pg_has_role('pg_signal_backend', 'USAGE') AND NOT holder.rolsuper)
FROM pg_stat_activity AS activity JOIN pg_roles AS holder ON holder.oid = activity.usesysid
WHERE application_name = %s AND datname = current_database()
"""


class Runs:
    """A connection to the rows; made when it is first needed, and again after it was lost.

    Errors of all methods: StoreUnavailable, in words that name no password.
    """

    def __init__(self, url: str, identity: str) -> None:
        self._url = url
        parsed = parse_url(url)
        self._name = parsed.render_as_string(hide_password=True)
        arguments = connect_arguments(parsed, identity)
        self._arguments = arguments | {
            "options": arguments["options"] + _OPTIONS,
            "connect_timeout": ANSWER_SECONDS_MAX,
            "tcp_user_timeout": ANSWER_SECONDS_MAX * 1000,
        }
        self._connection: psycopg.Connection | None = None
        self._has_meta = self._has_runs = False

    def look(self, own: Run | None) -> Look:
        """Write one's own row, if there is one and a table for it, and read what the store says now."""
        with self._answered() as connection:
            if not self._has_runs:
                self._find_tables(connection)
            with connection.pipeline(), connection.cursor() as cursor:
                if own is not None and self._has_runs:
                    cursor.execute(_BEAT, _row(own))
                holders = connection.execute(HOLDERS, (LOCK_CLASS,))
                stored = connection.execute(_META) if self._has_meta else None
                runs = connection.execute(_RUNS) if self._has_runs else None
            holder = next((name for _, name in holders.fetchall()), "")
            term, sequence, clock_us = (stored.fetchone() if stored is not None else None) or (0, 0, 0)
            return Look(
                runs=() if runs is None else tuple(_run(row) for row in runs.fetchall()),
                holder=holder,
                term=term or 0,
                sequence=sequence or 0,
                clock_us=clock_us,
                has_runs=self._has_runs,
            )

    def clock_us(self) -> int:
        """The clock of the database, in microseconds."""
        with self._answered() as connection:
            found = connection.execute(f"SELECT {_CLOCK}".encode()).fetchone()
            assert found is not None
            return int(found[0])

    def end_sessions(self, identity: str) -> int:
        """End all sessions of a scheduler that hangs, that which holds the lock among them; how many there were."""
        with self._answered() as connection:
            return len(connection.execute(_END, (identity,)).fetchall())

    def why_not_ending(self, identity: str) -> str:
        """Why this account may not end that scheduler's sessions; empty where it may, or where it has none."""
        with self._answered() as connection:
            for role, may_end in connection.execute(_MAY_END, (identity,)).fetchall():
                if not may_end:
                    return f"the leader's account {role} is another, and this one may not end its sessions"
        return ""

    def can_nobody_write(self) -> bool:
        """Whether each server answers and takes no writes, as while they change places: nobody leads meanwhile."""
        return takes_writes_nowhere(self._url)

    def fingerprints(self) -> dict[str, Fingerprint]:
        """The keys that a leader had, by file."""
        with self._answered() as connection:
            if not self._has_runs:
                self._find_tables(connection)
            if not self._has_runs:
                return {}
            found = connection.execute(b"SELECT file, fingerprint, host, path FROM key_fingerprint ORDER BY file")
            return {row[0]: Fingerprint(*row) for row in found.fetchall()}

    def keep_fingerprints(self, found: Mapping[str, Fingerprint]) -> None:
        """Remember the keys of who leads, in the place of what was known."""
        rows = [asdict(each) for each in found.values()]
        with self._answered() as connection, connection.transaction():
            connection.execute(b"DELETE FROM key_fingerprint")
            connection.execute(
                b"INSERT INTO key_fingerprint SELECT file, fingerprint, host, path"
                b" FROM json_to_recordset(%s::json) AS given(file text, fingerprint text, host text, path text)",
                (json.dumps(rows),),
            )

    def forget_old(self) -> None:
        """Drop the rows of schedulers that were killed long ago."""
        with self._answered() as connection:
            connection.execute(_FORGET, (FORGOTTEN_AFTER_SECONDS * 1_000_000,))

    def leave(self, identity: str) -> None:
        """Take one's own row away, so that nobody waits for it."""
        with self._answered() as connection:
            if self._has_runs:
                connection.execute(b"DELETE FROM scheduler_run WHERE identity = %s", (identity,))

    def close(self) -> None:
        """Let go of the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    @contextmanager
    def _answered(self) -> Iterator[psycopg.Connection]:
        """The connection; what goes wrong with it is StoreUnavailable, and the next use makes a new one."""
        try:
            yield self._open()
        except psycopg.Error as error:
            self.close()
            raise StoreUnavailable(f"{self._name}: {str(error).strip()}") from error

    def _open(self) -> psycopg.Connection:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(**self._arguments, autocommit=True)
            self._has_meta = self._has_runs = False  # it may be another server
        return self._connection

    def _find_tables(self, connection: psycopg.Connection) -> None:
        found = connection.execute(_HAS_TABLES).fetchone()
        assert found is not None
        self._has_meta, self._has_runs = found


def _row(own: Run) -> tuple[object, ...]:
    place = (own.identity, own.host, own.pid, own.address, own.data_folder, own.version)
    return (*place, own.role.value, own.term, own.sequence, own.problem)


def _run(row: tuple[object, ...]) -> Run:
    values = dict(zip(_COLUMNS, row, strict=True))
    return Run(**values | {"role": LeadingRole(values["role"])})  # type: ignore[arg-type]
