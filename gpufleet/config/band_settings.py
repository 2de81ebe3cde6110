"""Which bands people may ask for, in a settings file: by role, and for single users."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpufleet.config.kinds import Kind, Unreadable, key, quoted, table_of
from gpufleet.text.spelling import did_you_mean

BANDS = ("low", "normal", "high", "urgent")
"""The words of all bands, lowest first."""

ROLES = ("user", "admin")
"""Roles that submit jobs."""

USERS_MAX = 10_000
_USER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BandSettings:
    """Bands that people may ask for, lowest first: those of role user, of role admin, and of users by their names.

    A user's own entry takes the place of that of role user; an admin has what role admin has.
    """

    user: tuple[str, ...] = ("low", "normal")
    admin: tuple[str, ...] = BANDS
    users: tuple[tuple[str, tuple[str, ...]], ...] = ()


def _from_toml(raw: Any) -> BandSettings:
    table = _table(raw, "the bands of people")
    for name in table:
        if name not in ("roles", "users"):
            hint = did_you_mean(name, ("roles", "users"))
            raise Unreadable(f"{name}: there is no such table{hint}; write roles = {{ … }} or users = {{ … }}")
    roles = _table(table.get("roles", {}), "roles")
    for role in roles:
        if role not in ROLES:
            raise Unreadable(f"roles.{role}: only user and admin submit jobs{did_you_mean(role, ROLES)}")
    users = _table(table.get("users", {}), "users")
    if len(users) > USERS_MAX:
        raise Unreadable(f"{len(users):,} users are more than the {USERS_MAX:,} that are taken")
    for name in users:
        if not _USER_NAME.fullmatch(name):
            raise Unreadable(f"users.{name}: a user is 1 to 63 letters, digits, '.', '-', '_' or '@'")
    of_roles = {role: _bands(raw, f"roles.{role}") for role, raw in roles.items()}
    of_users = ((name, _bands(raw, f"users.{name}")) for name, raw in sorted(users.items()))
    return BandSettings(**of_roles, users=tuple(of_users))


def _table(raw: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(raw, dict):
        raise Unreadable(f'{name}: this is a table such as {{ users = {{ ann = ["low", "normal", "high"] }} }}')
    return raw


def _bands(raw: Any, path: str) -> tuple[str, ...]:
    if not isinstance(raw, list) or not raw:
        raise Unreadable(f'{path}: this is a list of bands, one at least, such as ["low", "normal"]')
    for word in raw:
        if word not in BANDS:
            hint = did_you_mean(word, BANDS) if isinstance(word, str) else ""
            raise Unreadable(f"{path}: {word} is not low, normal, high or urgent{hint}")
    return tuple(word for word in BANDS if word in raw)


def _from_text(text: str) -> BandSettings:
    return _from_toml(table_of(text, '{ users = { ann = ["low", "normal", "high"] } }'))


def _to_toml(bands: BandSettings) -> str:
    roles = _inline(("user", bands.user), ("admin", bands.admin))
    users = f", users = {_inline(*bands.users)}" if bands.users else ""
    return f"{{ roles = {roles}{users} }}"


def _inline(*entries: tuple[str, Iterable[str]]) -> str:
    lists = (f"{key(name)} = [{', '.join(map(quoted, words))}]" for name, words in entries)
    return f"{{ {', '.join(lists)} }}"


BAND_SETTINGS: Kind[BandSettings] = Kind("a table of bands by role and user", _from_toml, _from_text, _to_toml)
