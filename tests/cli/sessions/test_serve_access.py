"""Who may join, as it is typed to `serve`: the pass phrase itself leaves this machine nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpufleet.v1 import sessions_pb2

from cli.sessions.serve_options import PredictOptions, ProgramOptions, TurnOptions, WorkerOptions
from cli.sessions.serving import request_of
from gpufleet.errors import GpufleetError
from gpufleet.security.pass_phrases import is_pass_phrase


def limits(turns: TurnOptions) -> sessions_pb2.SessionLimits:
    return request_of(
        "canvas", None, WorkerOptions(), turns, ProgramOptions(), PredictOptions(), (), update=True
    ).model.limits


def test_a_pass_phrase_is_sent_as_its_hash(tmp_path: Path) -> None:
    file = tmp_path / "phrase"
    file.write_text("correct horse\n")
    for turns in (
        TurnOptions(pass_phrase_file=str(file)),
        TurnOptions(access="pass-phrase", pass_phrase_file=str(file)),
    ):
        sent = limits(turns)
        assert sent.access == sessions_pb2.MODEL_ACCESS_PASS_PHRASE
        assert is_pass_phrase("correct horse", sent.pass_phrase_hash) and "horse" not in str(sent)


def test_access_is_named_and_nothing_is_said_without_it() -> None:
    assert limits(TurnOptions(access="login")).access == sessions_pb2.MODEL_ACCESS_LOGIN
    assert limits(TurnOptions(access="open")).access == sessions_pb2.MODEL_ACCESS_OPEN
    assert limits(TurnOptions(line_length=5)).access == sessions_pb2.MODEL_ACCESS_UNSPECIFIED


@pytest.mark.parametrize(
    ("access", "file", "words"),
    [
        ("logins", None, '--access: "logins" is not one of open, pass-phrase, login; did you mean "login"?'),
        ("pass-phrase", None, "--access: pass-phrase needs the phrase"),
        ("login", "phrase", "--pass-phrase-file: does not go with --access login"),
        (None, "nowhere", "--pass-phrase-file: nowhere cannot be read: No such file or directory"),
    ],
)
def test_what_does_not_fit_is_refused_by_option(access: str | None, file: str | None, words: str) -> None:
    with pytest.raises(GpufleetError) as refused:
        limits(TurnOptions(access=access, pass_phrase_file=file))
    assert str(refused.value).startswith(words) or words in refused.value.message, refused.value.message
