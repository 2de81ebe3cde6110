"""docs/options.md is as the tables make it, and has every option of `submit`."""

from __future__ import annotations

from typing import Any

from cli.app import command_line
from cli.following_options import FOLLOWING
from cli.options import CONNECTION
from tests.pairs.features import FEATURES
from tests.pairs.meanings import MEANINGS
from tests.pairs.options_table import PAGE, page

OF_OTHER_COMMANDS, OF_EVERY_COMMAND = (FOLLOWING, CONNECTION), {"--output", "--help"}
"""Panels and options that say nothing of a job."""


def test_the_page_is_made_of_the_tables() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.pairs.options_table"


def test_every_option_of_submit_has_a_row() -> None:
    submit: Any = command_line().get_command(None, "submit")
    options = [each for each in submit.params if each.param_type_name == "option"]
    own = [each for each in options if getattr(each, "rich_help_panel", None) not in OF_OTHER_COMMANDS]
    words = [max(each.opts, key=len) for each in own]
    assert set(words) - OF_EVERY_COMMAND == MEANINGS.keys()


def test_an_option_that_is_tried_names_a_feature() -> None:
    for meaning in MEANINGS.values():
        name, _, level = meaning.feature.partition("=")
        assert not name or (name in FEATURES and (not level or level in FEATURES[name]))
