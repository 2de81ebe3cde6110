"""`--verify`: looks at everything that is stored, changes nothing, and says what is wrong."""

from __future__ import annotations

from contextlib import closing

from gpufleet.scheduler_settings import SchedulerSettings

from .outputs.errors import OutputStoreUnavailable
from .outputs.opening import FOLDER, open_shelf
from .outputs.verify import OutputVerdict
from .store.errors import StoreError, StoreLocked, StoreUnavailable, StoreUrlInvalid
from .store.opening import open_to_examine, parse_url
from .store.verify import Examined


def store_url(settings: SchedulerSettings) -> str:
    """Where the store is: the database that is set, or the embedded one in the data folder."""
    return settings.store or f"sqlite:///{settings.data / 'scheduler.db'}"


def verify(settings: SchedulerSettings) -> tuple[list[str], str]:
    """What is wrong with what is stored, a sentence each, and a sentence on what was looked at.

    Errors: StoreLocked, StoreUnavailable and StoreUrlInvalid where nothing can be looked at.
    """
    try:
        examined = open_to_examine(store_url(settings))
    except (StoreLocked, StoreUnavailable, StoreUrlInvalid):
        raise
    except StoreError as error:
        return [str(error)], ""
    with closing(examined):
        problems = examined.problems()
        if problems:
            return problems, ""
        return _outputs(settings, examined)


def _outputs(settings: SchedulerSettings, examined: Examined) -> tuple[list[str], str]:
    verdict = OutputVerdict()
    living = ended = 0
    is_in_files = parse_url(store_url(settings)).get_backend_name() == "sqlite"
    shelf = None
    if not is_in_files or (settings.data / FOLDER).is_dir():
        shelf = open_shelf(settings.store, 0, settings.data / FOLDER)
    try:
        for job in examined.jobs():
            living, ended = living + (not job.is_finished), ended + job.is_finished
            if shelf is not None:
                verdict.look_at(shelf, job)
    except OutputStoreUnavailable as error:
        verdict.problems.append(f"the stored output cannot be read: {error}")
    finally:
        if shelf is not None:
            shelf.close()
    looked_at = (
        f"{living:,} living and {ended:,} ended jobs; the output of {verdict.whole_jobs:,} is whole, "
        f"that of {verdict.dropped_jobs:,} was dropped by age or size, and others wrote none"
    )
    return verdict.problems, looked_at
