"""What callers wrote, as a row may hold it: one line, bounded, without tokens; and numbers of jobs in short."""

from collections.abc import Iterable

from gpufleet.security.tokens import TOKEN_CHARACTERS, TOKEN_PREFIX, mask_tokens
from gpufleet.text.cleaning import clean

CUT = "…"

WORDS_CHARS_MAX = 200
"""Of a name or a reason so much is kept."""

TOKEN_CHARS = len(TOKEN_PREFIX) + TOKEN_CHARACTERS + 1
"""As much is looked at to see where a token ends."""

JOBS_CHARS_MAX = 1_000
"""Of the numbers of a call's jobs so many characters are kept."""

Span = tuple[int, int]
"""Numbers from the first to the last, both among them."""


def words(text: str) -> str:
    """A text on one line, bounded, in which every token is cut to its prefix."""
    if not text:
        return text
    # A token that begins within the bound is whole here, and is found.
    masked = mask_tokens(clean(text[: WORDS_CHARS_MAX + TOKEN_CHARS]))
    return masked if len(masked) <= WORDS_CHARS_MAX else masked[: WORDS_CHARS_MAX - 1] + CUT


def spans_of(numbers: Iterable[int]) -> list[Span]:
    """Numbers as spans, in order, each number once; what is no number of a job is left out."""
    spans: list[Span] = []
    for number in sorted({each for each in numbers if each > 0}):
        if spans and number == spans[-1][1] + 1:
            spans[-1] = spans[-1][0], number
        else:
            spans.append((number, number))
    return spans


def written(spans: Iterable[Span]) -> str:
    """Such as "41-50,60"; what is too long is cut behind a whole span."""
    text = ""
    for first, last in spans:
        more = ("," if text else "") + (str(first) if first == last else f"{first}-{last}")
        if len(text) + len(more) >= JOBS_CHARS_MAX:
            return f"{text},{CUT}"
        text += more
    return text


def names(text: str, number: int) -> bool:
    """Whether such a text names this number, or may, as it was cut."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        if part == CUT or (first and int(first) <= number <= int(last or first)):
            return True
    return False
