"""Every class that the store is given comes back equal from a payload."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from scheduler.store.codec import Codec
from scheduler.store.encoding import EncodeError
from scheduler.store.kinds import ENTITY_CLASSES, RECORD_CLASSES
from tests.rings.choosing import examples

STORED = sorted({*ENTITY_CLASSES.values(), *RECORD_CLASSES.values()}, key=lambda cls: cls.__name__)


@pytest.mark.parametrize("cls", STORED, ids=lambda cls: cls.__name__)
def test_every_stored_class_comes_back_equal(cls: type) -> None:
    codec = Codec()

    @settings(max_examples=examples(10), suppress_health_check=list(HealthCheck))
    @given(st.from_type(cls))
    def comes_back(value: object) -> None:
        try:
            payload = codec.encode(value)
        except EncodeError as error:
            assert "expected a finite float" in str(error)
            reject()
        assert codec.decode(cls, payload) == value

    comes_back()
