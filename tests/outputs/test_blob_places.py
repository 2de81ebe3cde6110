"""Where whole files are, if not in the data folder: whose it is, who shares it, what happens while it is away."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from gpufleet.config.scheduler_settings import FileSettings, SchedulerSettings
from gpufleet.errors import GpufleetError, Reason
from gpufleet.jobs.files import PIECE_BYTES_MAX
from scheduler.blobs.backends import object_store
from scheduler.blobs.backends.admission import KNOWN_FILE, admit
from scheduler.blobs.backends.backend import MARKER
from scheduler.blobs.opening import open_blobs
from scheduler.blobs.reading import pieces_from
from scheduler.blobs.receiving import Receiving
from scheduler.blobs.results import Stored
from scheduler.blobs.store import BlobLimits, BlobStore
from scheduler.state.ids import JobId, RankKey
from tests.outputs.conftest import FLEET, BlobPlaces
from tests.outputs.object_server import KEY, SECRET, ObjectServer
from tests.outputs.test_blob_store import ANN, BOB, DATA, DIGEST, content_of, reason, upload

REMOTE = pytest.mark.parametrize("blob_place", ["folder", "bucket"], indirect=True)
BUCKET = pytest.mark.parametrize("blob_place", ["bucket"], indirect=True)
FOLDER = pytest.mark.parametrize("blob_place", ["folder"], indirect=True)
WIDE = BlobLimits(file_bytes=2**30, user_bytes=2**30, user_files=1_000, free_bytes=0)
LARGE = os.urandom(2**20) * 20


def refusal(act: Any) -> GpufleetError:
    with pytest.raises(GpufleetError) as caught:
        act()
    return caught.value


@REMOTE
def test_two_schedulers_have_one_place_and_the_same_file_may_be_stored_by_both_at_once(blobs: BlobPlaces) -> None:
    stores = [blobs.open(data=name) for name in ("one", "two")]
    for store in stores:
        store.write(ANN, DIGEST, 0, DATA)
    threads = [threading.Thread(target=store.finish, args=(ANN, DIGEST, len(DATA))) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [content_of(store, ANN, DIGEST) for store in stores] == [DATA, DATA]
    assert blobs.names() == [f"ann/{DIGEST}"]
    # What one has stored, another one that did not see it has all the same: it takes over.
    other = upload(stores[0], BOB, b"of another")
    assert content_of(stores[1], BOB, other) == b"of another"
    stores[1].look_around()
    assert stores[1].size_of(BOB, other) == 10
    # And what one has dropped, the other knows at its next look.
    stores[0].place.remove((BOB, other))
    stores[1].look_around()
    assert (stores[1].size_of(BOB, other), stores[1].open(BOB, other)) == (None, None)


@REMOTE
def test_a_file_is_in_its_place_only_once_all_of_it_is_there(blobs: BlobPlaces) -> None:
    one, two = blobs.open(data="one"), blobs.open(data="two")
    one.write(ANN, DIGEST, 0, DATA[:5_000])
    assert one.finish(ANN, DIGEST, len(DATA)) == 5_000
    two.look_around()
    assert (blobs.names(), two.size_of(ANN, DIGEST), two.open(ANN, DIGEST)) == ([], None, None)
    one.write(ANN, DIGEST, 5_000, DATA[5_000:])
    one.finish(ANN, DIGEST, len(DATA))
    assert blobs.names() == [f"ann/{DIGEST}"]
    assert not list((blobs.data.parent / "one" / "ann").iterdir()), "its part is gone"


@REMOTE
def test_before_all_is_listed_a_file_is_found_by_its_name_and_nothing_is_dropped(blobs: BlobPlaces) -> None:
    digest = upload(blobs.open(), ANN, b"a")
    late = blobs.open(is_listed=False)
    assert late.size_of(ANN, digest) is None
    late.keep([(ANN, digest), (BOB, digest)])
    assert (late.size_of(ANN, digest), late.size_of(BOB, digest)) == (1, None)
    assert late.prune(-1.0, ()) == 0
    assert late.look_around() == 1
    assert late.prune(-1.0, ()) == 1
    assert blobs.names() == []


@REMOTE
def test_what_was_stored_in_the_data_folder_moves_to_a_place_that_is_set_later(
    blobs: BlobPlaces, tmp_path: Path
) -> None:
    before = BlobStore(blobs.data, lambda: WIDE)
    digest = upload(before, ANN, DATA)
    key = RankKey(JobId(7), 1, 0, "0123456789abcdef")
    before.results.add(key, Stored(ANN, digest, ()))
    store = blobs.open(WIDE, is_listed=False)
    assert (store.size_of(ANN, digest), content_of(store, ANN, digest)) == (len(DATA), DATA)
    store.keep([(ANN, digest)])
    assert store.size_of(ANN, digest) == len(DATA)
    store.look_around()
    assert blobs.names() == [f"ann/{digest}"]
    assert [each for each in blobs.data.rglob("*") if each.is_file()] == [blobs.data / KNOWN_FILE]
    assert store.results.of(key) == Stored(ANN, digest, ())
    assert content_of(blobs.open(data="another"), ANN, digest) == DATA


@REMOTE
def test_another_fleets_place_is_refused_and_so_is_one_that_lost_what_was_there(
    blobs: BlobPlaces, tmp_path: Path
) -> None:
    store = blobs.open()
    backend = blobs.backend()
    assert backend is not None
    another = refusal(lambda: admit(backend, "another-fleet", tmp_path))
    assert another.reason is Reason.CONFIG_INVALID and "another fleet" in another.message
    assert "prefix" in another.next_step
    if blobs.kind == "folder":
        (blobs.folder / MARKER).unlink()
    else:
        assert blobs.objects is not None
        blobs.objects.drop_bucket(blobs.bucket)
        blobs.objects.new_bucket(blobs.bucket)
    emptied = refusal(lambda: admit(backend, FLEET, blobs.data))
    assert emptied.reason is Reason.CONFIG_INVALID and KNOWN_FILE in emptied.next_step
    # What runs already must not take it for a place in which nothing is: jobs would fail for want of their files.
    assert reason(lambda: store.open(ANN, DIGEST)) is Reason.STORE_UNAVAILABLE
    store.write(ANN, DIGEST, 0, DATA)
    if blobs.kind == "folder":
        assert reason(lambda: store.finish(ANN, DIGEST, len(DATA))) is Reason.STORE_UNAVAILABLE
    (blobs.data / KNOWN_FILE).unlink()
    admit(backend, FLEET, blobs.data)
    store.finish(ANN, DIGEST, len(DATA))
    assert content_of(store, ANN, DIGEST) == DATA
    backend.close()


@BUCKET
def test_a_store_that_is_away_loses_nothing_and_an_upload_goes_on_once_it_is_back(
    blobs: BlobPlaces, own_objects: ObjectServer
) -> None:
    objects, store = own_objects, blobs.open()
    key = RankKey(JobId(7), 1, 0)
    known = upload(store, ANN, b"a")
    store.results.add(key, Stored(ANN, known, ()))
    assert store.results.of(key) is not None
    objects.stop()
    try:
        store.write(ANN, DIGEST, 0, DATA)
        away = refusal(lambda: store.finish(ANN, DIGEST, len(DATA)))
        assert away.reason is Reason.STORE_UNAVAILABLE and f"s3://{blobs.bucket}/fleet" in away.message
        assert SECRET not in str(away) and away.next_step
        # Everybody is told that it is away, and nobody of whose files, and which, were asked for.
        assert store.place.trouble.startswith(f"the store of files, s3://{blobs.bucket}/fleet, is away: ")
        assert f"/{ANN}/{DIGEST}" in away.message
        assert DIGEST not in store.place.trouble and f"/{ANN}" not in store.place.trouble
        assert (store.size_of(ANN, DIGEST), store.stored_bytes(ANN, DIGEST)) == (None, len(DATA))
        assert reason(lambda: store.open(ANN, known)) is Reason.STORE_UNAVAILABLE
        assert reason(lambda: store.look_around()) is Reason.STORE_UNAVAILABLE
        assert store.size_of(ANN, known) == 1, "what is known stays known"
        assert store.results.of(key) == Stored(ANN, known, ())
        assert reason(lambda: store.results.of(RankKey(JobId(8), 1, 0))) is Reason.STORE_UNAVAILABLE
    finally:
        objects.start()
    assert store.finish(ANN, DIGEST, len(DATA)) == len(DATA)
    assert store.place.trouble == ""
    assert content_of(store, ANN, DIGEST) == DATA


@BUCKET
async def test_a_large_file_goes_in_parts_and_comes_in_pieces(
    blobs: BlobPlaces, objects: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "PART_BYTES", 5 * 2**20)  # S3 takes no smaller ones
    store = blobs.open(WIDE)
    digest = hashlib.sha256(LARGE).hexdigest()
    async with Receiving(store, ANN) as stream:
        await stream.begin(digest, len(LARGE))
        for offset in range(0, len(LARGE), PIECE_BYTES_MAX):
            await stream.take(offset, LARGE[offset : offset + PIECE_BYTES_MAX])
        assert store.size_of(ANN, digest) is None
        assert await stream.finish() == len(LARGE)
    assert sum("partNumber" in each and digest in each for each in objects.requests) == 4
    reader = await store.on_thread(store.open, ANN, digest)
    assert reader is not None
    found = [data async for _, data in pieces_from(store, reader, 3)]
    assert max(map(len, found)) <= PIECE_BYTES_MAX and b"".join(found) == LARGE[3:]
    got = [each for each in objects.requests if each.startswith("GET") and digest in each]
    assert len(got) == -(-len(LARGE) // object_store.READ_BYTES), "it is read in blocks"


@BUCKET
def test_of_parts_that_are_cut_no_object_comes_and_the_next_try_stores_it(
    blobs: BlobPlaces, objects: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "PART_BYTES", 5 * 2**20)
    store = blobs.open(WIDE)
    digest = hashlib.sha256(LARGE).hexdigest()
    store.write(ANN, digest, 0, LARGE)
    with objects.failing(lambda method, path: "503 Slow Down" if "partNumber=" in path else ""):
        assert reason(lambda: store.finish(ANN, digest, len(LARGE))) is Reason.STORE_UNAVAILABLE
    assert (blobs.names(), objects.unfinished(blobs.bucket)) == ([], [])
    assert store.finish(ANN, digest, len(LARGE)) == len(LARGE)
    assert content_of(store, ANN, digest) == LARGE


@BUCKET
def test_parts_that_nobody_finishes_are_dropped_after_a_day(
    blobs: BlobPlaces, objects: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, backend = blobs.open(), blobs.backend()
    assert isinstance(backend, object_store.ObjectStoreBackend)
    backend._call("create_multipart_upload", Bucket=blobs.bucket, Key=f"fleet/ann/{DIGEST}")
    monkeypatch.setattr(object_store, "UNFINISHED_SECONDS_MAX", 1e12)  # moto says of all that they are years old
    store.look_around()
    assert len(objects.unfinished(blobs.bucket)) == 1, "another scheduler may send it just now"
    monkeypatch.undo()
    store.look_around()
    assert objects.unfinished(blobs.bucket) == []
    backend.close()


@BUCKET
def test_a_file_that_another_one_dropped_while_it_was_read_is_told_so(blobs: BlobPlaces) -> None:
    store = blobs.open()
    digest = upload(store, ANN, DATA)
    reader = store.open(ANN, digest)
    assert reader is not None
    store.place.remove((ANN, digest))
    assert reason(lambda: reader.read(0, 10)) is Reason.FILE_NOT_UPLOADED


@FOLDER
def test_of_a_copy_that_was_cut_nothing_is_left_and_no_file_is_there(
    blobs: BlobPlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = blobs.open()
    store.write(ANN, DIGEST, 0, DATA)

    def cut(source: Any, target: Any, length: int) -> None:
        target.write(source.read(100))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", cut)
    full = refusal(lambda: store.finish(ANN, DIGEST, len(DATA)))
    assert full.reason is Reason.STORE_UNAVAILABLE and "is full" in full.message
    assert blobs.names() == [] and not list((blobs.folder / "ann").iterdir())
    monkeypatch.undo()
    assert store.finish(ANN, DIGEST, len(DATA)) == len(DATA)


def settings_for(objects: ObjectServer, bucket: str, tmp_path: Path, **others: Any) -> FileSettings:
    keys = tmp_path / "keys"
    keys.write_text(f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
    keys.chmod(0o600)
    words: dict[str, Any] = {"s3_endpoint": objects.url, "s3_region": "us-east-1", "s3_key_file": keys}
    return FileSettings(store=f"s3://{bucket}/x", **words | others)


def test_what_cannot_be_right_is_refused_at_the_start_with_what_to_type(
    objects: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(files: FileSettings) -> GpufleetError:
        problem = refusal(lambda: open_blobs(lambda: files, tmp_path, FLEET))
        assert SECRET not in str(problem) and problem.next_step
        return problem

    none = start(settings_for(objects, "no-such-bucket", tmp_path))
    assert (none.reason, "no bucket no-such-bucket" in none.message) == (Reason.CONFIG_INVALID, True)
    assert "aws s3 mb s3://no-such-bucket" in none.next_step
    bucket = objects.new_bucket()
    wrong = tmp_path / "wrong"
    wrong.write_text(f"[default]\naws_access_key_id = AKIDWRONG\naws_secret_access_key = {SECRET}\n")
    wrong.chmod(0o600)
    refused = start(settings_for(objects, bucket, tmp_path, s3_key_file=wrong))
    assert refused.reason is Reason.CONFIG_INVALID and "does not let" in refused.message
    assert "AWS_ACCESS_KEY_ID" in refused.next_step and "s3_key_file" in refused.next_step
    wrong.chmod(0o644)
    exposed = start(settings_for(objects, bucket, tmp_path, s3_key_file=wrong))
    assert (exposed.reason, exposed.next_step) == (Reason.TOKEN_FILE_EXPOSED, f"chmod 600 {wrong}")
    wrong.chmod(0o600)
    wrong.write_text("[other]\n")
    assert "aws_access_key_id" in start(settings_for(objects, bucket, tmp_path, s3_key_file=wrong)).message
    absent = start(settings_for(objects, bucket, tmp_path, s3_key_file=tmp_path / "none"))
    assert "s3_key_file" in absent.message
    monkeypatch.setitem(sys.modules, "s3fs", None)
    lacking = start(settings_for(objects, bucket, tmp_path))
    assert (lacking.reason, lacking.next_step) == (
        Reason.CONFIG_INVALID,
        "Where the scheduler is: pip install 'gpufleet[s3]'",
    )
    unmounted = start(FileSettings(store=str(tmp_path / "not-mounted")))
    assert "no folder that this account can write" in unmounted.message and "Mount it" in unmounted.next_step


def test_a_store_that_is_away_at_the_start_is_let_in_once_it_is_back(own_objects: ObjectServer, tmp_path: Path) -> None:
    objects = own_objects
    files = settings_for(objects, objects.new_bucket(), tmp_path)
    objects.stop()
    try:
        blobs, upkeep = open_blobs(lambda: files, tmp_path, FLEET)
        assert "is away" in blobs.place.trouble
        assert reason(lambda: blobs.keep([(ANN, DIGEST)])) is Reason.STORE_UNAVAILABLE
        upkeep.look()
        assert "is away" in blobs.place.trouble
    finally:
        objects.start()
    upkeep.look()
    assert blobs.place.trouble == ""
    assert content_of(blobs, ANN, upload(blobs, ANN, b"a")) == b"a"
    blobs.close()


@pytest.mark.parametrize(
    ("wrong", "key", "why"),
    [
        ({"store": "gs://bucket"}, "files.store", "no bucket"),
        ({"store": "blobs"}, "files.store", "no folder"),
        ({"store": "/mnt/../etc"}, "files.store", "without .."),
        ({"store": "s3://AKID:secret@bucket/x"}, "files.store", "must hold no keys"),
        ({"store": "s3://B_cket"}, "files.store", "no bucket"),
        ({"store": "s3://bucket/a/../b"}, "files.store", "prefix"),
        ({"store": "s3://bucket/a?b=c"}, "files.store", "no bucket"),
        ({"store": "s3://[bucket"}, "files.store", "no URL"),
        ({"s3_region": "eu-west-1"}, "files.s3_region", "goes with"),
        ({"store": "/mnt/team", "s3_endpoint": "http://a"}, "files.s3_endpoint", "goes with"),
        ({"store": "s3://bucket", "s3_endpoint": "minio:9000"}, "files.s3_endpoint", "no URL of a server"),
        ({"store": "s3://bucket", "s3_endpoint": "http://a:b@c"}, "files.s3_endpoint", "must hold no keys"),
        ({"store": "s3://bucket", "s3_endpoint": "http://c/bucket"}, "files.s3_endpoint", "more than a server"),
        ({"store": "s3://bucket", "s3_endpoint": "http://c:99999"}, "files.s3_endpoint", "no URL"),
    ],
)
def test_a_setting_that_names_no_place_is_told_by_its_name(wrong: dict[str, Any], key: str, why: str) -> None:
    found = dict(SchedulerSettings(files=FileSettings(**wrong)).conflicts())
    assert why in found[key] and "secret" not in found[key]


@pytest.mark.parametrize("right", ["", "/mnt/team/blobs", "file:///mnt/team", "s3://bucket", "s3://my.bucket/a/b=c/"])
def test_a_setting_that_names_a_place_is_taken(right: str) -> None:
    assert not [key for key, _ in SchedulerSettings(files=FileSettings(store=right)).conflicts() if "files" in key]


def test_who_stores_in_a_folder_never_imports_what_speaks_with_object_stores() -> None:
    module = importlib.import_module("scheduler.blobs.backends.object_store")
    assert not {"s3fs", "fsspec"} & set(vars(module))


async def test_waits_for_a_place_that_is_far_away_keep_no_other_thread(blobs: BlobPlaces) -> None:
    store = blobs.open()
    name = await store.on_thread(lambda: threading.current_thread().name)
    assert name.startswith("file-store") is (blobs.kind != "data folder")
    assert isinstance(store, BlobStore) and asyncio.get_running_loop().is_running()
