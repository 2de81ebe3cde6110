"""Lines of a .gitignore match what they did when each * was tried everywhere, and no line takes long over a name."""

from __future__ import annotations

from typing import Any, AnyStr, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from gpufleet.jobs.patterns import means_nothing, spec_of
from gpufleet.jobs.results import trouble_with_line

NAMES = st.text("ab.", min_size=1, max_size=5).filter(lambda name: name not in (".", ".."))
PATHS = st.lists(NAMES, min_size=1, max_size=7).map("/".join)
PIECES = st.sampled_from(["a", "b", "*", "*", "?", "[ab]", "[!a]", "."])
SEGMENTS = st.one_of(st.just("**"), st.lists(PIECES, min_size=1, max_size=6).map("".join))
LINES = st.builds(
    lambda no, begin, segments, end: f"{no}{begin}{'/'.join(segments)}{end}",
    st.sampled_from(["", "", "!"]),
    st.sampled_from(["", "/"]),
    st.lists(SEGMENTS, min_size=1, max_size=7),
    st.sampled_from(["", "/"]),
)


class PlainPattern(GitIgnoreSpecPattern):
    """A line as its library has it, but that [!a] matches no slash."""

    __slots__ = ()

    @classmethod
    def pattern_to_regex(cls, pattern: AnyStr) -> tuple[AnyStr | None, bool | None]:
        regex, include = super().pattern_to_regex(pattern)
        return cast("Any", regex.replace("[^a]", "[^a/]") if isinstance(regex, str) else regex), include


@given(st.lists(LINES, min_size=1, max_size=3), st.lists(PATHS, min_size=1, max_size=8))
def test_lines_match_as_their_library_has_them(lines: list[str], paths: list[str]) -> None:
    plain = GitIgnoreSpec.from_lines(lines, PlainPattern, backend="simple")
    bounded = spec_of(lines)
    for path in paths:
        assert bounded.check_file(path) == plain.check_file(path), (lines, path)
        assert bounded.check_file(f"{path}/") == plain.check_file(f"{path}/"), (lines, path)


@pytest.mark.parametrize("line", ["a[!b]c", "a[+-9]c", "*[!]b]*[^d-e]c", "**/a[!b]c/**"])
def test_a_class_of_letters_matches_no_slash(line: str) -> None:
    assert not spec_of([line]).match_file("a/c/d")
    assert spec_of([line]).match_file("a-c/d")


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("a*" * 40 + "b", "a" * 200),
        ("*" * 60 + "b", "a" * 200),
        ("**/a*/" * 40 + "**/b", "a/" * 500 + "c"),
        ("**/*/" * 40 + "b", "a/" * 500 + "c"),
        ("/**/" + "*a*a*a*a*/" * 50 + "b", ("a" * 9 + "/") * 100 + "c"),
        ("**/" + "*a*a?a*a*" * 50 + "/**/b", ("a" * 250 + "/") * 4 + "c"),
    ],
)
@pytest.mark.timeout(120)
def test_no_line_takes_long_over_a_name(line: str, path: str) -> None:
    """Tried one within another, each of these takes longer than the machine will last."""
    assert not spec_of([line]).match_file(path)
    assert spec_of([line, "!x", "*"]).match_file(path)


@pytest.mark.parametrize("line", ["[z-a]", "[a--b]", "[abc", "/"])
def test_a_line_that_can_match_nothing_is_told(line: str) -> None:
    assert means_nothing(line)
    assert not spec_of([line]).match_file("a")
    assert "chooses nothing" in trouble_with_line(line)


def test_a_line_with_a_meaning_is_none_of_these() -> None:
    for line in ("*", "**", "!*.tmp", "out/", "[a-z]*"):
        assert not trouble_with_line(line), line
    assert "is no pattern" in trouble_with_line("!")
