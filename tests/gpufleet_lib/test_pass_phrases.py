"""Pass phrases: hashed where they enter, known again, and read from a file of one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.errors import GpufleetError, Reason
from gpufleet.security.pass_phrases import CHARS_MAX, hash_pass_phrase, is_hash, is_pass_phrase, read_pass_phrase


def test_a_hash_knows_its_pass_phrase_and_tells_nothing_of_it() -> None:
    stored = hash_pass_phrase("correct horse")
    assert is_hash(stored) and "horse" not in stored
    assert is_pass_phrase("correct horse", stored)
    assert not is_pass_phrase("Correct horse", stored)
    assert not is_pass_phrase("", stored)
    assert stored != hash_pass_phrase("correct horse")


def test_what_looks_alike_is_alike() -> None:
    assert is_pass_phrase("cafe\u0301 at nine", hash_pass_phrase("caf\u00e9 at nine"))


@pytest.mark.parametrize("text", ["", "hunter2", "scrypt$2$8$5$" + "a" * 22 + "$" + "b" * 43, "scrypt$16384$8$5$a$b"])
def test_only_hashes_of_this_cost_are_taken(text: str) -> None:
    assert not is_hash(text)
    assert not is_pass_phrase("correct horse", text)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_a_file_holds_one_line(tmp_path: Path, end: bytes) -> None:
    file = tmp_path / "phrase"
    file.write_bytes(b"correct horse" + end)
    assert read_pass_phrase(str(file)) == "correct horse"


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"short", b"two lines\nof them\n", b" leads with one", b"\xff" * 20, b"x" * (CHARS_MAX + 1)]
)
def test_a_file_without_a_pass_phrase_is_refused_and_not_quoted(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(GpufleetError) as refused:
        read_pass_phrase(str(file))
    error = refused.value
    assert error.reason is Reason.INVALID_ARGUMENT and error.next_step.startswith("Write one line of 8 to 200")
    assert "leads" not in error.message and "short" not in error.message


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(GpufleetError) as refused:
        read_pass_phrase(str(tmp_path / "none"))
    assert refused.value.reason is Reason.FILE_NOT_FOUND and "none" in refused.value.message
