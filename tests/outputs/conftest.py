"""Every contract test of the output store runs on files and on rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from gpufleet.config.file_store import FileStorePlace
from gpufleet.config.scheduler_settings import FileSettings, SchedulerSettings
from scheduler.blobs.backends.admission import admit
from scheduler.blobs.backends.backend import Backend
from scheduler.blobs.backends.folder import FolderBackend
from scheduler.blobs.backends.object_store import ObjectStoreBackend
from scheduler.blobs.store import BlobLimits, BlobStore
from scheduler.clock import wall_time
from scheduler.outputs.layout import OutputLimits
from scheduler.outputs.opening import open_outputs
from scheduler.outputs.segmented import SegmentedOutputStore
from scheduler.state.units import Instant
from scheduler.store.opening import open_store
from tests.outputs.object_server import KEY, SECRET, ObjectServer, object_server
from tests.store.postgres_server import PostgresServer, shared_server

Reopen = Callable[..., SegmentedOutputStore]


@pytest.fixture(scope="session")
def postgres(long_lived: Callable[[str], AbstractContextManager[None]]) -> Iterator[PostgresServer]:
    with shared_server(long_lived) as server:
        yield server


@pytest.fixture(scope="session", params=["files", pytest.param("rows", marks=pytest.mark.postgres)])
def shelf_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    if kind == "rows":
        request.getfixturevalue("postgres")
    return kind


@pytest.fixture
def store_url(shelf_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of the first term, not open."""
    if shelf_kind == "files":
        return f"sqlite:///{tmp_path / 'scheduler.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    url = server.url(server.new_database())
    with closing(open_store(url)):
        return url


@pytest.fixture
def reopen(store_url: str, tmp_path: Path) -> Iterator[Reopen]:
    """Opens the output store, as a new process would; what an earlier opening had not synced may be lost."""
    opened: list[SegmentedOutputStore] = []

    def reopen(
        limits: OutputLimits | None = None, wall_clock: Callable[[], Instant] = wall_time
    ) -> SegmentedOutputStore:
        if opened:
            opened[-1].close()
        opened.append(open_outputs(SchedulerSettings(store=store_url), tmp_path, 1, wall_clock))
        if limits is not None:
            opened[-1].change_limits(limits)
        return opened[-1]

    yield reopen
    if opened:
        opened[-1].close()


@pytest.fixture
def outputs(reopen: Reopen) -> SegmentedOutputStore:
    return reopen()


FLEET = "fleet-of-the-test"
BLOB_LIMITS = BlobLimits(file_bytes=100_000, user_bytes=200_000, user_files=3, free_bytes=0)


class BlobClock:
    """The wall clock of stores of blobs, in seconds."""

    now = 1_000_000.0


@pytest.fixture(scope="session")
def objects(long_lived: Callable[[str], AbstractContextManager[None]]) -> Iterator[ObjectServer]:
    with object_server(long_lived) as server:
        yield server


@pytest.fixture(params=["data folder", "folder", "bucket"])
def blob_place(request: pytest.FixtureRequest) -> str:
    """Where whole blobs are."""
    kind: str = request.param
    return kind


class BlobPlaces:
    """Opens stores of blobs whose whole ones are in one place, as new processes would: each with parts of its own, if
    it is told so."""

    def __init__(self, kind: str, tmp_path: Path, objects: ObjectServer | None) -> None:
        self.kind = kind
        self.data = tmp_path / "data"
        self.folder = tmp_path / "files"
        self.objects = objects
        self.bucket = objects.new_bucket() if objects is not None else ""
        self.opened: list[BlobStore] = []

    def backend(self) -> Backend | None:
        if self.kind == "data folder":
            return None
        if self.kind == "folder":
            self.folder.mkdir(exist_ok=True)
            return FolderBackend(self.folder, is_own=False)
        assert self.objects is not None
        keys = self.data.parent / "keys"
        keys.write_text(f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
        keys.chmod(0o600)
        settings = FileSettings(
            store=f"s3://{self.bucket}/fleet", s3_endpoint=self.objects.url, s3_region="us-east-1", s3_key_file=keys
        )
        return ObjectStoreBackend(FileStorePlace(bucket=self.bucket, prefix="fleet/"), settings)

    def open(
        self,
        limits: BlobLimits = BLOB_LIMITS,
        *,
        data: str = "data",
        wall_clock: Callable[[], float] = lambda: BlobClock.now,
        is_listed: bool = True,
    ) -> BlobStore:
        backend, folder = self.backend(), self.data.parent / data
        store = BlobStore(folder, lambda: limits, wall_clock, backend)
        self.opened.append(store)
        if backend is not None:
            admit(backend, FLEET, folder)
            if is_listed:
                store.look_around()
        return store

    def names(self) -> list[str]:
        """USER/DIGEST of what is stored whole, as whoever looks at the place sees it."""
        if self.kind == "bucket":
            assert self.objects is not None
            found = [each.removeprefix("fleet/") for each in self.objects.keys(self.bucket)]
        else:
            root = self.folder if self.kind == "folder" else self.data
            found = sorted(str(each.relative_to(root)) for each in root.rglob("*") if each.is_file())
        return [each for each in found if not each.startswith(".") and not each.endswith(".part")]


@pytest.fixture
def blobs(blob_place: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BlobPlaces]:
    name = "own_objects" if "own_objects" in request.fixturenames else "objects"
    objects = request.getfixturevalue(name) if blob_place == "bucket" else None
    places = BlobPlaces(blob_place, tmp_path, objects)
    yield places
    for each in places.opened:
        each.close()
    if objects is not None:
        objects.drop_buckets()


@pytest.fixture
def own_objects(objects: ObjectServer) -> Iterator[ObjectServer]:
    """One that a test may stop."""
    server = ObjectServer()
    server.start()
    yield server
    server.stop()
    server.drop_buckets()
