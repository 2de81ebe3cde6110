"""Uploads what the scheduler lacks of a folder: chunks first, and the manifest that names them last."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.errors import GpufleetError, Reason
from gpufleet.text.units import counted, format_size

from ..blob_upload import Source, missing_blobs, upload_blobs
from ..client import connected
from ..notices import Notices
from ..settings import Settings
from . import known_chunks
from .preparing import Prepared, bytes_of, changed
from .scanning import LEFT_OUT_SHOWN, largest


def send(settings: Settings, prepared: Prepared, notices: Notices) -> None:
    """Upload what is missing, and say how much that is. Errors: CONFLICT, and those of UploadBlob.

    Chunks are hashed when they are described, and by the scheduler when they have come; not here again.
    """
    manifest = prepared.folder.digest
    sources = [*_chunks(prepared), Source(manifest, len(prepared.manifest), "the manifest", prepared.manifest_from)]
    with connected(settings) as client:
        missing = missing_blobs(client, [each.digest for each in sources])
        chunks = [each for each in sources if each.digest in missing and each.digest != manifest]
        size = sum(each.size_bytes - missing[each.digest] for each in chunks)
        sends = f"sends {format_size(size)} in {counted(len(chunks), 'chunk')}" if chunks else "nothing of it is new"
        say_what_is_in(prepared, notices, f"; {sends}")
        try:
            upload_blobs(client, sources, missing)
        except GpufleetError as problem:
            plan = prepared.plans.get(problem.metadata.get("digest", ""))
            if problem.reason is not Reason.DIGEST_MISMATCH or plan is None:
                raise
            known_chunks.save(prepared.found.root, {})  # what is remembered of it does not hold
            raise changed(prepared.found.root, plan[0].file.path) from None


def _chunks(prepared: Prepared) -> Iterator[Source]:
    for digest, plan in prepared.plans.items():

        def read(offset: int, plan: known_chunks.Plan = plan) -> Iterator[bytes]:
            yield bytes_of(prepared.found.root, plan)[offset:]

        yield Source(digest, sum(part.size for part in plan), plan[0].file.path, read)


def say_what_is_in(prepared: Prepared, notices: Notices, sends: str = "") -> None:
    """Say what is uploaded of a folder and what is not; `sends` ends the first line."""
    found = prepared.found
    notices.say(f"--upload {found.root}: {counted(found.count, 'file')}, {format_size(found.content_bytes)}{sends}")
    if found.files:
        notices.say(f"largest: {largest(found)}")
    if found.left_out:
        more = len(found.left_out) - LEFT_OUT_SHOWN
        shown = ", ".join(map(ascii, found.left_out[:LEFT_OUT_SHOWN])) + (f" and {more} more" if more > 0 else "")
        notices.say(f"left out: {shown}")
    if found.ignored.count or not found.ignored.is_complete:
        notices.say(f"not uploaded, as ignored: {found.ignored}")
