"""The ports of served programs: chosen among those that nobody listens on, and put into commands."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net import program_ports
from gpufleet.net.program_ports import choose_port, is_port_taken, with_port


def test_a_port_is_chosen_that_nobody_listens_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        taken = listening.getsockname()[1]
        assert is_port_taken(taken)
        monkeypatch.setattr(program_ports, "PORT_FIRST", taken)
        monkeypatch.setattr(program_ports, "PORT_LAST", taken)
        with pytest.raises(GpufleetError) as refused:
            choose_port()
        assert refused.value.reason is Reason.PORT_TAKEN
    assert choose_port() == taken


def test_a_port_that_is_promised_to_another_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_ports, "PORT_FIRST", free := choose_port())
    monkeypatch.setattr(program_ports, "PORT_LAST", free)
    with pytest.raises(GpufleetError):
        choose_port({free})


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("$PORT", "17"),
        ("--port=${PORT}", "--port=17"),
        ("http://127.0.0.1:$PORT/$PORT", "http://127.0.0.1:17/17"),
        ("$PORTAL ${PORTAL} $PORT_2 $$PORT PORT", "$PORTAL ${PORTAL} $PORT_2 $17 PORT"),
        ("$HOME", "$HOME"),
    ],
)
def test_the_port_stands_in_arguments_under_the_name_of_its_variable(word: str, shown: str) -> None:
    assert with_port(["a", word], "PORT", 17) == ("a", shown)
    renamed: Any = with_port(["a", word.replace("PORT", "LISTEN")], "LISTEN", 17)
    assert renamed == ("a", shown.replace("PORT", "LISTEN"))
