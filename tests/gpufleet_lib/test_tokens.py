"""Tokens: made, hashed, masked, kept in files that others cannot read, and found."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpufleet.errors import GpufleetError, Reason
from gpufleet.security.tokens import (
    find_token,
    hash_token,
    is_token,
    make_token,
    mask_tokens,
    read_token_file,
    token_matches,
    write_token_file,
)


def test_tokens_differ_and_have_the_form_of_tokens() -> None:
    tokens = {make_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(is_token(token) and len(token) == 46 for token in tokens)
    assert not is_token("gf_short")
    assert not is_token(make_token() + "x")


def test_only_the_right_token_matches_its_hash() -> None:
    token = make_token()
    assert token_matches(token, hash_token(token))
    assert not token_matches(make_token(), hash_token(token))
    assert not token_matches(token, "")
    assert token not in hash_token(token)


def test_every_token_in_a_text_is_masked_and_nothing_else() -> None:
    first, second = make_token(), make_token()
    text = f"Bearer {first}, and ({second}); gf_name stays"
    assert mask_tokens(text) == "Bearer gf_…, and (gf_…); gf_name stays"


def test_a_token_file_is_read_back_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "admin.token"
    write_token_file(path, make_token())
    token = make_token()
    before = os.umask(0)
    try:
        write_token_file(path, token)
    finally:
        os.umask(before)
    assert read_token_file(path) == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["admin.token"], "nothing unfinished is left"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_token_file_that_others_can_open_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "admin.token"
    write_token_file(path, make_token())
    path.chmod(mode)
    with pytest.raises(GpufleetError, match="other accounts") as caught:
        read_token_file(path)
    assert caught.value.reason is Reason.TOKEN_FILE_EXPOSED
    assert caught.value.next_step == f"Take their right away with: chmod 600 {path}"


@pytest.mark.parametrize("content", [b"", b"hello", b"\xff\xfe", b"gf_x\n", b"x" * 10_000])
def test_a_file_with_something_else_is_refused_and_its_content_not_shown(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(GpufleetError) as caught:
        read_token_file(path)
    assert caught.value.reason is Reason.TOKEN_FILE_INVALID
    assert "hello" not in caught.value.message


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(GpufleetError, match="no token file") as caught:
        read_token_file(tmp_path / "t")
    assert caught.value.reason is Reason.FILE_NOT_FOUND
    with pytest.raises(GpufleetError, match="cannot be read"):
        read_token_file(tmp_path)


def test_the_flag_goes_before_the_variable_and_that_before_the_context(tmp_path: Path) -> None:
    flag, variable, context = make_token(), make_token(), make_token()
    flag_file, context_file = tmp_path / "flag", tmp_path / "context"
    write_token_file(flag_file, flag)
    write_token_file(context_file, context)
    environment = {"GPUCTL_TOKEN": f" {variable}\n"}

    found = find_token(flag_file, environment, context_file)
    assert found is not None and (found.token, found.origin) == (flag, f"--token-file {flag_file}")
    assert flag not in repr(found)
    found = find_token(None, environment, context_file)
    assert found is not None and (found.token, found.origin) == (variable, "GPUCTL_TOKEN")
    found = find_token(None, {"GPUCTL_TOKEN": ""}, context_file)
    assert found is not None and found.token == context
    assert find_token(None, {}, None) is None


def test_a_named_token_that_cannot_be_used_is_never_replaced_by_another(tmp_path: Path) -> None:
    context_file = tmp_path / "context"
    write_token_file(context_file, make_token())
    with pytest.raises(GpufleetError, match="no token file"):
        find_token(tmp_path / "missing", {}, context_file)
    with pytest.raises(GpufleetError, match="does not hold a gpufleet token") as caught:
        find_token(None, {"GPUCTL_TOKEN": "secret"}, context_file)
    assert "secret" not in caught.value.message
