"""What can go wrong with the store, by what the caller must do about it."""


class StoreError(Exception):
    """Any trouble with the store."""


class StoreUnavailable(StoreError):
    """The store cannot answer now (disk full, locked, connection lost): commit the same batch again later."""


class StoreCorrupt(StoreError):
    """The store holds, or was asked to hold, what must not be: stop, and say what."""


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
