"""Opens the store that a URL names: to be the scheduler (lock, migrations, a new term), or to examine it."""

import re
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from sqlalchemy import URL, Connection, delete, insert, make_url, select, update
from sqlalchemy.exc import ArgumentError

from . import reading
from .codec import FORMAT, Codec
from .database import Database, explained
from .errors import StoreMissing, StoreTooNew, StoreTooOld, StoreUnavailable, StoreUrlInvalid, read_as_stored
from .migrations import NEWEST_REVISION, RetiredRevision, UnknownRevision, check_not_retired, revision_of, upgrade
from .reading import Began, Meta
from .schema import lineage, meta
from .sqlite import SqliteDatabase
from .store import SqlStore
from .verify import Examined

LINEAGE_BYTES = 8
"""Random bytes of a lineage, and of the id of a store: none is drawn twice."""

STARTS_KEPT = 10_000
"""Starts of which the store keeps the lineage; who has seen an older one counts as having seen one of its own."""

WAY_BACK = "Run that version; or restore the backup that this version made before the upgrade"

EXAMPLES = "write sqlite:////path/to/scheduler.db or postgresql://user@host/database"


SEVERAL_HOSTS = re.compile(
    r"(?P<begin>postgres[a-z0-9+]*://(?:[^/?]*@)?)(?P<hosts>[^/?@]+,[^/?@]*)(?P<path>/[^?]*)?(?:\?(?P<query>.*))?"
)
PASSWORD = re.compile(r"(//?[^:/@]*):.*@")

Admit = Callable[[Meta | None, Sequence[Began]], int]
"""Looks at what a store says of itself, None where there is none yet, and raises what keeps it from being opened.

Answers a term that the new one must be above of; 0 for none.
"""


def open_store(
    url: str,
    admit: Admit = lambda found, starts: 0,
    *,
    identity: str | None = None,
    when_locked: Callable[[], None] = lambda: None,
) -> SqlStore:
    """The store at sqlite:///FILE or postgresql://…, made where there is none, with a term above every earlier one.

    A store that is not admitted stays as it is. `identity` names the connections to a server, and `when_locked` is
    called once no other scheduler can open the store, before anything is read or changed. Errors: those of `admit`,
    StoreUrlInvalid, StoreLocked, StoreTooNew, StoreTooOld, StoreCorrupt, StoreUnavailable.
    """
    database = database_at(url, identity=identity)
    try:
        when_locked()
        name = parse_url(url).render_as_string(hide_password=True)
        with read_as_stored(name), explained(database), database.engine.begin() as connection:
            upgrade(connection)
            above = admit(reading.meta_of(connection), reading.starts_of(connection))
            _claim_term(connection, above)
        return SqlStore(database, Codec(), reading.only_meta(database), reading.starts(database))
    except UnknownRevision as error:
        database.close()
        raise StoreTooNew(f"a newer version of this program made the store's tables: {error}. {WAY_BACK}") from error
    except RetiredRevision as error:
        database.close()
        raise StoreTooOld(str(error)) from error
    except BaseException:
        database.close()
        raise


def open_to_examine(url: str) -> Examined:
    """The store at a URL as it is: nothing of it is changed, and no scheduler can open it meanwhile.

    Errors: StoreUrlInvalid, StoreLocked, StoreTooNew, StoreTooOld, StoreCorrupt, StoreUnavailable (there is none, too).
    """
    database = database_at(url, is_read_only=True)
    name = parse_url(url).render_as_string(hide_password=True)
    try:
        with read_as_stored(name), explained(database), database.engine.connect() as connection:
            check_revision(name, revision_of(connection))
    except BaseException:
        database.close()
        raise
    return Examined(database, Codec())


def check_revision(name: str, revision: str | None) -> None:
    """Raise what keeps a database's tables from being read as they are.

    Errors: StoreUnavailable (there are none, or older ones), StoreTooOld, StoreTooNew.
    """
    if revision is None:
        raise StoreMissing(f"{name}: this database holds no store")
    try:
        check_not_retired(revision)
    except RetiredRevision as error:
        raise StoreTooOld(f"{name}: {error}") from error
    if revision < NEWEST_REVISION:
        raise StoreUnavailable(
            f"{name}: an older version made its tables (revision {revision}, now {NEWEST_REVISION});"
            " a start of the scheduler brings them up to date"
        )
    if revision > NEWEST_REVISION:
        raise StoreTooNew(f"a newer version of this program made the store's tables: revision {revision}. {WAY_BACK}")


def database_at(url: str, *, is_read_only: bool = False, is_kept: bool = True, identity: str | None = None) -> Database:
    """The database at a URL, whatever is in it. Not `kept`, it may be a running scheduler's, and is read beside that.

    Errors: StoreUrlInvalid, StoreLocked, StoreUnavailable.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        if not parsed.database or parsed.database == ":memory:":
            raise StoreUrlInvalid(f"{url!r} names no file, and what is not in a file is lost: {EXAMPLES}")
        return SqliteDatabase(Path(parsed.database), is_read_only=is_read_only, is_kept=is_kept)
    try:
        from .postgres import PostgresDatabase
    except ImportError as error:
        raise without_psycopg(error) from error
    return PostgresDatabase(parsed, is_read_only=is_read_only, is_kept=is_kept, identity=identity)


def without_psycopg(error: ImportError) -> StoreUrlInvalid:
    """What to say where psycopg cannot be imported, which an install has for PostgreSQL only."""
    return StoreUrlInvalid(f"PostgreSQL needs psycopg ({error}): pip install 'gpufleet[postgres]'")


def parse_url(url: str) -> URL:
    """A store's URL in its parts. Errors: StoreUrlInvalid."""
    try:
        parsed = make_url(with_hosts_apart(url))
    except (ArgumentError, ValueError):
        raise StoreUrlInvalid(f"{without_password(url)!r} is not a URL: {EXAMPLES}") from None
    if "@" in (parsed.host or ""):
        raise StoreUrlInvalid(f"{without_password(url)!r} has two @: one in a password is written %40")
    if parsed.drivername == "postgres":
        parsed = parsed.set(drivername="postgresql")
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise StoreUrlInvalid(f"{parsed.get_backend_name()!r} is no database that the store can be in: {EXAMPLES}")
    return parsed


def with_hosts_apart(url: str) -> str:
    """A URL of several hosts, as libpq takes it (postgresql://one:5432,two:5432/name), as SQLAlchemy takes it."""
    found = SEVERAL_HOSTS.fullmatch(url)
    if found is None:
        return url
    hosts = "&".join(f"host={each}" for each in found["hosts"].split(",") if each)
    return f"{found['begin']}{found['path'] or '/'}?{hosts}{'&' + found['query'] if found['query'] else ''}"


def without_password(url: str) -> str:
    """A URL to be shown, well-formed or not: nothing of what may be a password is in it."""
    return PASSWORD.sub(r"\1:***@", url)


def _claim_term(connection: Connection, above: int) -> None:
    """Begin a term above this one, and the lineage that belongs to it alone, in one transaction."""
    # Whoever writes beside the commits holds the row by FOR KEY SHARE until that is done: nothing of an earlier term is
    # written behind this.
    stored = connection.execute(select(meta.c.format).with_for_update()).scalar()
    if stored is None:
        first = {"id": 1, "format": FORMAT, "term": 1, "commit_number": 0, "record_seq": 0, "newest_us": 0}
        connection.execute(insert(meta).values(first))
    elif stored > FORMAT:
        raise StoreTooNew(f"the store is of format {stored} and this program knows {FORMAT}: run a newer version")
    else:
        connection.execute(update(meta).values(format=FORMAT, term=meta.c.term + 1, commit_number=0))
    connection.execute(update(meta).where(meta.c.store_id == "").values(store_id=secrets.token_hex(LINEAGE_BYTES)))
    connection.execute(update(meta).where(meta.c.term <= above).values(term=above + 1))
    term, begin_seq = connection.execute(select(meta.c.term, meta.c.record_seq)).one()
    began = {"term": term, "lineage": secrets.token_hex(LINEAGE_BYTES), "begin_seq": begin_seq}
    connection.execute(insert(lineage).values(began))
    connection.execute(delete(lineage).where(lineage.c.term <= term - STARTS_KEPT))
