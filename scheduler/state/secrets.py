"""Secrets: values that people keep for their jobs under a name. What is here is sealed; the key is never here."""

from dataclasses import dataclass
from typing import NewType

from .ids import UserName
from .units import Instant

SecretName = NewType("SecretName", str)
SecretKey = tuple[UserName, SecretName]


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A secret of a user; `sealed` is its value as `secret_box.py` sealed it for this user and name alone."""

    user: UserName
    name: SecretName
    set_at: Instant
    set_by: UserName
    sealed: bytes = b""

    @property
    def key(self) -> SecretKey:
        """By what it is found."""
        return self.user, self.name
