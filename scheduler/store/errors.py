"""What can go wrong with the store, by what the caller must do about it."""

from collections.abc import Iterator
from contextlib import contextmanager


class StoreError(Exception):
    """Any trouble with the store."""


class StoreUnavailable(StoreError):
    """The store cannot answer now (disk full, locked, connection lost): commit the same batch again later."""


class StoreMissing(StoreUnavailable):
    """There is no store where one was to be looked at: no file, or no tables in it."""


class StoreCorrupt(StoreError):
    """The store holds, or was asked to hold, what must not be: stop, and say what."""


UNLIKE_ANY_COMMIT = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What comes of values that no commit ever stored: reading them, comparing them, or building a state of them."""


@contextmanager
def read_as_stored(what: str) -> Iterator[None]:
    """Whatever reading makes of a damaged file is StoreCorrupt, and names what was read; never a traceback."""
    try:
        yield
    except UNLIKE_ANY_COMMIT as error:
        raise StoreCorrupt(
            f"{what}: nothing that was ever stored reads so ({type(error).__name__}: {error})"
        ) from error


class TermSuperseded(StoreError):
    """A scheduler that opened the store later owns it now: stop."""


class StoreLocked(StoreError):
    """Another scheduler has the store open; the message names it."""


class StoreTooNew(StoreError):
    """A newer version of this program wrote the store: this one must not touch it."""


class StoreTooOld(StoreError):
    """The store is of before the first release, and is left as it is; the message says what can bring it here."""


class StoreUrlInvalid(StoreError):
    """The URL names no store this program can open; the message says what to write."""
