"""Forms, whole and in single bytes, and what is refused of them: nothing is kept, and memory stays flat."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from gateway.api import forms
from gateway.api.forms import FormReader, ReadForm
from gateway.api.spool import Spool
from gpufleet.errors import GpufleetError
from tests.gateway.api.ingest_stage import BOUNDARY, FORM, form, part


async def in_chunks(data: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def read(folder: Path, data: bytes, *, size: int = 65_536, one_file: str = "", said: str = FORM) -> ReadForm:
    spool = Spool(folder, 10_000_000)
    try:
        got = await FormReader(spool, ("gpu", "spec"), one_file).read(said, in_chunks(data, size))
        for each in got.files:
            held = b"".join([piece async for piece in spool.pieces(each.spooled)])
            assert hashlib.sha256(held).hexdigest() == each.spooled.digest and len(held) == each.spooled.size_bytes
        return got
    finally:
        spool.close()
        assert not list(folder.glob("*")), "a file is left"  # noqa: ASYNC240


@pytest.mark.parametrize("size", [1, 7, 65_536])
async def test_fields_and_files_are_the_same_however_they_come(tmp_path: Path, size: int) -> None:
    nearly = f"\r\n--{BOUNDARY[:-1]}".encode()
    parts = [part("gpu", "true"), part("file", nearly * 3, "a.bin"), part("spec", "{}"), part("b", b"", "d/\u00e9.txt")]
    found = await read(tmp_path / "spool", form(parts), size=size)
    assert found.fields == {"gpu": "true", "spec": "{}"} and found.flag("gpu") is True
    assert [(each.part, each.path, each.spooled.size_bytes) for each in found.files] == [
        ("file", "a.bin", 3 * len(nearly)),
        ("b", "d/\u00e9.txt", 0),
    ]
    assert found.files[0].spooled.digest == hashlib.sha256(nearly * 3).hexdigest()


HEAD = f"--{BOUNDARY}\r\n".encode()


def with_head(*lines: str) -> bytes:
    return HEAD + "".join(f"{line}\r\n" for line in lines).encode("latin-1") + b"\r\nx\r\n" + form([])


WRONG: Sequence[tuple[str, bytes]] = (
    ("not a form", b"hello"),
    ("another boundary", form([part("file", b"x", "a")]).replace(BOUNDARY.encode(), b"another")),
    ("cut in a file", form([part("file", b"x" * 1_000, "a")])[:600]),
    ("cut before its end", form([part("file", b"x", "a")])[: -len(BOUNDARY) - 4]),
    ("nothing", b""),
    ("no name", with_head("Content-Disposition: form-data")),
    ("no disposition", with_head("Content-Type: text/plain")),
    ("an attachment", with_head('Content-Disposition: attachment; name="file"; filename="a"')),
    ("a header twice", with_head(*['Content-Disposition: form-data; name="gpu"'] * 2)),
    ("many headers", with_head('Content-Disposition: form-data; name="gpu"', *(f"X-{n}: y" for n in range(20)))),
    ("a huge header", with_head(f'Content-Disposition: form-data; name="{"n" * 100_000}"')),
    ("a header of no end", HEAD + b"X" * 100_000),
    ("an unknown field", form([part("gppu", "true")])),
    ("a field twice", form([part("gpu", "true"), part("gpu", "true")])),
    ("a field that is no text", form([part("gpu", b"\xff")])),
    ("a long field", form([part("spec", b"x" * 1_000_001)])),
    ("a name that leads out", form([part("file", b"x", "../a")])),
    ("an absolute name", form([part("file", b"x", "/etc/passwd")])),
    ("a name with NUL", form([part("file", b"x", "a\0b")])),
    ("a name that is no text", with_head('Content-Disposition: form-data; name="file"; filename="\xff"')),
    ("an empty name", with_head('Content-Disposition: form-data; name="file"; filename=""')),
    ("a long name", form([part("file", b"x", "a" * 300)])),
    ("two files", form([part("file", b"x", "a"), part("file", b"x", "b")])),
    ("another file", form([part("other", b"x", "a")])),
    ("a thousand files and more", form([part("file", b"", f"{n}") for n in range(1_001)])),
    ("files that are too long", form([part("file", b"x" * 10_000_001, "a")])),
)


@pytest.mark.parametrize(("what", "data"), WRONG, ids=[each[0] for each in WRONG])
async def test_what_is_wrong_is_refused_and_nothing_is_left(tmp_path: Path, what: str, data: bytes) -> None:
    of_many = "" if "thousand" in what else "file"
    for size in (1_000, 65_536):
        with pytest.raises(GpufleetError) as refused:
            await read(tmp_path / "spool", data, size=size, one_file=of_many)
        assert refused.value.reason.name in ("INVALID_ARGUMENT", "MESSAGE_TOO_LARGE")


async def test_a_form_says_its_boundary_and_is_not_all_filling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for said in (
        "multipart/form-data",
        "multipart/form-data; boundary=",
        f'multipart/form-data; boundary="{"b" * 300}"',
    ):
        with pytest.raises(GpufleetError):
            await read(tmp_path / "spool", form([]), said=said)
    monkeypatch.setattr(forms, "OVERHEAD_BYTES_MAX", 10_000)
    for filling in (b"\r\n" * 10_000 + form([]), form([]) + b"x" * 20_000):
        with pytest.raises(GpufleetError) as refused:
            await read(tmp_path / "spool", filling, size=1_000)
        assert refused.value.reason.name == "MESSAGE_TOO_LARGE"
