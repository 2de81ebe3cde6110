"""What nobody else should read is taken out of what is packed: pure functions from text to text.

Two layers. What may hold anything (commands, environments, notifications) is left out as a whole, where it is
packed. What remains (logs, settings, messages) goes through `Redactor`: known secrets wherever they stand, and
everything that has the name or the form of one. It rather takes out too much.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from gpufleet.security.tokens import mask_tokens

GONE = "[removed]"
SECRET_CHARS_MIN = 6
"""A shorter value of a variable is no secret, and would be found in every other word."""

FOLDERS = ("PWD", "OLDPWD")
"""Variables of every shell that only sound like passwords."""

_SECRET_NAME = (
    r"[\w.-]*(?:token|secret|passw(?:or)?d|passwd|passphrase|api[_-]?key|apikey|access[_-]?key|private[_-]?key"
    r"|credential|authorization|cookie|signature|(?:^|(?<=[\W_]))(?:auth|pwd|key)(?=[\W_]|$))[\w.-]*"
)
_HARMLESS_NAME = re.compile(r"(?i)(?:file|files|path|dir|id|ids|count|chars|bytes|name|names|time|origin)$")
_VALUE = r"\\?\"(?:[^\"\\]|\\[^\"])*\\?\"|'[^']*'|[^\s\"',;&{}\[\]\\]+"
_ASSIGNED = re.compile(
    rf"(?im)(?P<name>{_SECRET_NAME})(?P<sign>\\?[\"']?\s*[=:]\s*(?:(?:Bearer|Basic)\s+)?)(?P<value>{_VALUE})"
)
_OPTION = re.compile(rf"(?i)(?P<name>--?{_SECRET_NAME})(?P<sign>\s+)(?P<value>(?!-){_VALUE})")
_SCHEME = re.compile(r"(?i)\b(Bearer|Basic)\s+[A-Za-z0-9+/=._~-]{6,}")
_URL = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)([^\s/@:\"']*)(:[^\s/@\"']*)?@")
_PRIVATE_KEY = re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)
_WELL_KNOWN = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|xox[abeprs]-[A-Za-z0-9-]{10,}|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)


def is_secret_name(name: str) -> bool:
    """Whether a variable or a setting of this name holds a secret."""
    return re.fullmatch(f"(?i){_SECRET_NAME}", name) is not None and _HARMLESS_NAME.search(name) is None


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    """The values of the variables that hold secrets."""
    return [value for name, value in environment.items() if is_secret_name(name) and name not in FOLDERS]


class Redactor:
    """Takes secrets out of text. `known` are secrets that are taken out wherever they stand."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        # The longest first: one secret may be a part of another.
        wanted = sorted({each for each in known if len(each) >= SECRET_CHARS_MIN}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, wanted))) if wanted else None

    def text(self, text: str) -> str:
        """The text without secrets."""
        if self._known is not None:
            text = self._known.sub(GONE, text)
        text = _PRIVATE_KEY.sub(rf"-----BEGIN \1----- {GONE}", text)
        text = mask_tokens(text)
        text = _URL.sub(rf"\1{GONE}@", text)
        text = _ASSIGNED.sub(_without_value, text)
        text = _OPTION.sub(_without_value, text)
        text = _SCHEME.sub(rf"\1 {GONE}", text)
        return _WELL_KNOWN.sub(GONE, text)

    def value(self, value: Any, name: str = "") -> Any:
        """The same for what will be JSON: what stands under the name of a secret is taken out as a whole."""
        match value:
            case dict():
                return {key: self.value(each, str(key)) for key, each in value.items()}
            case list():
                return [self.value(each, name) for each in value]
            case str():
                return GONE if value and is_secret_name(name) else self.text(value)
            case _:
                return value


def _without_value(found: re.Match[str]) -> str:
    value = found["value"]
    bare = value.strip("\\\"'")
    if _HARMLESS_NAME.search(found["name"]) or not bare:
        return found[0]
    before, behind = value[: value.index(bare[0])], value[value.rindex(bare[-1]) + 1 :]
    return f"{found['name']}{found['sign']}{before}{GONE}{behind}"
