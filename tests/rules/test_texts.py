"""What a text or a comment names is there: files, headings, rules, and the tests that hold the rules."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.rules.texts import FILE, ROOT, dead_links, is_there, named_in_page, named_in_source, pages, sources

NOT_OF_THE_REPOSITORY = {
    ("docs/web-protocol.md", "assets/"): "below the address of a gateway",
    ("docs/write-a-model.md", "embers.py"): "what the reader writes",
    ("docs/predict.md", "scaled.py"): "what the reader writes",
}
"""By the file that names it: what may be named and is no file here."""

RULE_BOOKS = ("jobs", "sessions")
RULE = re.compile(r"^\*\*(?P<number>\d+\.\d+)\*\* (?P<text>.*?)(?=^\*\*\d|^## |\Z)", re.MULTILINE | re.DOTALL)
CITED = re.compile(r"docs/rules/(?P<book>\w+)\.md (?P<numbers>\d+\.\d+(?:(?:, | and | to )\d+\.\d+)*)")
OF_TRANSCRIPT = re.compile(r"^# Rule (?P<number>\d+\.\d+):")


@cache
def rules(book: str) -> dict[str, str]:
    """The text of each rule of a book, by its number."""
    text = (ROOT / f"docs/rules/{book}.md").read_text()
    return {rule["number"]: rule["text"] for rule in RULE.finditer(text)}


def holders(rule: str) -> list[str]:
    """What holds a rule, as it is written behind its text."""
    return re.findall(r"`([^`]+)`", rule.partition("\nHeld by:")[2])


def holds(holder: str) -> bool:
    """Whether there is such a transcript, test or check."""
    file, _, name = holder.partition("::")
    if not name:
        return (ROOT / "tests/core" / file).is_file()
    path, (*classes, function) = ROOT / file, name.split(".")
    text = path.read_text() if path.is_file() else ""
    wanted = [rf"^class {each}\b" for each in classes] + [rf"^ *(?:async )?def {function}\b"]
    return all(re.search(each, text, re.MULTILINE) for each in wanted)


def test_every_link_of_a_page_leads_somewhere() -> None:
    assert not [(page, link) for page in pages() for link in dead_links(page, (ROOT / page).read_text())]


def test_every_file_that_a_page_names_exists() -> None:
    named = {(page, name) for page in pages() for name in named_in_page((ROOT / page).read_text())}
    assert not {(page, name) for page, name in named - NOT_OF_THE_REPOSITORY.keys() if not is_there(name)}


def test_every_file_that_a_comment_or_docstring_names_exists() -> None:
    texts = {source: (ROOT / source).read_text() for source in sources()}
    # To take a file apart costs far more than to look through it, and most name nothing that could be missing.
    suspects = {source: text for source, text in texts.items() if not all(map(is_there, FILE.findall(text)))}
    missing = {
        (source, name)
        for source, text in suspects.items()
        for name in named_in_source(source, text)
        if not is_there(name)
    }
    assert not missing - NOT_OF_THE_REPOSITORY.keys()


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("see `scheduler/core/decide.py` and `core/decide.py`", []),
        ("see `core/undecided.py`", ["core/undecided.py"]),
        ("in `tests/rules/` and in `tests/rulers/`", ["tests/rulers/"]),
        ("`tests/core/golden/fair_share.txt`, not `tests/core/golden/unfair.txt`", ["tests/core/golden/unfair.txt"]),
        ("```\nvim new.py\n```", []),
    ],
)
def test_a_file_that_a_page_names_and_that_is_not_there_is_found(text: str, missing: list[str]) -> None:
    assert [name for name in named_in_page(text) if not is_there(name)] == missing


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", '"""See NOWHERE.md."""\n'),
        ("a.py", "x = 1  # see NOWHERE.md\n"),
        ("a.ts", "/** See NOWHERE.md. */\n"),
        ("a.proto", "// See NOWHERE.md.\n"),
    ],
)
def test_a_file_that_a_comment_names_and_that_is_not_there_is_found(name: str, text: str) -> None:
    assert list(named_in_source(name, text)) == ["NOWHERE.md"]
    assert not is_there("NOWHERE.md")


@pytest.mark.parametrize(
    ("link", "is_dead"),
    [
        ("[a](README.md)", False),
        ("[a](docs/dashboard.md)", False),
        ("[a](docs/nowhere.md)", True),
        ("[a](#commands)", False),
        ("[a](README.md#commands)", False),
        ("[a](README.md#commanders)", True),
        ("[a](https://example.org/nowhere.md)", False),
    ],
)
def test_a_link_that_leads_nowhere_is_found(link: str, *, is_dead: bool) -> None:
    assert list(dead_links("README.md", link)) == (["](" + link.partition("](")[2]] if is_dead else [])


def test_what_holds_a_rule_exists() -> None:
    named = {(book, number): holders(rule) for book in RULE_BOOKS for number, rule in rules(book).items()}
    assert not [rule for rule, by in named.items() if not by], "say what holds it: a line that begins with Held by:"
    assert not [(rule, holder) for rule, by in named.items() for holder in by if not holds(holder)]


@pytest.mark.parametrize("book", RULE_BOOKS)
def test_rules_are_numbered_in_order(book: str) -> None:
    numbers = [tuple(map(int, number.split("."))) for number in rules(book)]
    text = (ROOT / f"docs/rules/{book}.md").read_text()
    assert len(numbers) == len(re.findall(r"^\*\*\d", text, re.MULTILINE))
    parts = [int(part) for part in re.findall(r"^## (\d+)\.", text, re.MULTILINE)]
    assert numbers == [
        (part, rule) for part in parts for rule in range(1, 1 + sum(1 for each in numbers if each[0] == part))
    ]


def test_a_rule_that_is_cited_exists() -> None:
    cited = {
        (source, book, number)
        for source in (*sources(), *pages())
        for book, numbers in CITED.findall((ROOT / source).read_text())
        for number in re.findall(r"\d+\.\d+", numbers)
    }
    assert cited
    assert not {each for each in cited if each[1] not in RULE_BOOKS or each[2] not in rules(each[1])}


@pytest.mark.parametrize("book", RULE_BOOKS)
def test_every_transcript_holds_a_rule(book: str) -> None:
    folder = {"jobs": "golden", "sessions": "session_golden"}[book]
    there = {f"{folder}/{each.name}" for each in (ROOT / "tests/core" / folder).glob("*.txt")}
    named = {holder for each in RULE_BOOKS for rule in rules(each).values() for holder in holders(rule)}
    assert not there - named, f"name it in docs/rules/{book}.md, behind the rule that it shows"


@pytest.mark.parametrize("book", RULE_BOOKS)
def test_a_transcript_that_names_its_rule_is_named_by_it(book: str) -> None:
    folder = {"jobs": "golden", "sessions": "session_golden"}[book]
    for transcript in (ROOT / "tests/core" / folder).glob("*.txt"):
        if named := OF_TRANSCRIPT.match(transcript.read_text()):
            assert f"{folder}/{transcript.name}" in holders(rules(book)[named["number"]])


@pytest.mark.parametrize(
    "holder",
    [
        "golden/never_was.txt",
        "tests/core/test_golden.py::test_never_was",
        "tests/core/test_never_was.py::test_it",
        "tests/simulation/checks.py::NoChecks.committed",
    ],
)
def test_a_holder_that_does_not_exist_is_found(holder: str) -> None:
    assert not holds(holder)
