"""What ssh-config writes leads to the same scheduler as the same person, wherever ssh is typed later."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.inside.entering_by_ssh import connection_words
from cli.options import Connection


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder to type in, with an account's contexts beside it."""
    for name in ("GPUCTL_SCHEDULER", "GPUCTL_TOKEN", "GPUCTL_TOKEN_FILE", "GPUCTL_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    contexts = tmp_path / "config/gpufleet/contexts.toml"
    contexts.parent.mkdir(parents=True)
    contexts.write_text(
        'current = "lab"\n[contexts.lab]\nscheduler = "lab:50051"\n[contexts.home]\nscheduler = "127.0.0.1:50051"\n'
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(options: Connection) -> list[str]:
    return connection_words(options.settings(), options)


def test_the_context_in_use_is_named_as_it_may_be_another_one_by_then() -> None:
    assert words(Connection()) == ["--context", "lab"]
    assert words(Connection(context="home")) == ["--context", "home"]


def test_a_file_that_was_typed_is_found_from_another_folder(here: Path) -> None:
    (here / "ann.token").touch()
    found = words(Connection(token_file=Path("ann.token"), insecure=True))
    assert found == ["--context", "lab", "--token-file", str(here / "ann.token"), "--insecure"]


def test_variables_go_along_but_for_the_token_itself(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCTL_SCHEDULER", "head:7000,spare:7000")
    monkeypatch.setenv("GPUCTL_TOKEN_FILE", "ann.token")
    monkeypatch.setenv("GPUCTL_TOKEN", "gf_secret")
    found = words(Connection())
    assert found[:2] == ["--scheduler", "head:7000,spare:7000"]
    assert found[found.index("--token-file") + 1] == str(here / "ann.token")
    assert "gf_secret" not in " ".join(found)
    typed = words(Connection(scheduler="127.0.0.1:50051"))
    assert typed[:4] == ["--scheduler", "127.0.0.1:50051", "--context", "home"], "what is typed goes before a variable"
