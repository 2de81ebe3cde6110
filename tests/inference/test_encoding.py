"""What becomes of a model's picture before it is encoded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from inference.encoding import is_same, picture_of

SIZES = [(384, 512), (5, 7), (1, 1), (4, 2)]


def drawn(height: int, width: int) -> NDArray[np.uint8]:
    return np.arange(height * width * 3, dtype=np.uint32).astype(np.uint8).reshape(height, width, 3)


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_a_picture_is_the_same_as_its_copy_wherever_that_lies(height: int, width: int) -> None:
    picture = drawn(height, width)
    room = np.empty(picture.size + 1, np.uint8)
    moved = room[1:].reshape(picture.shape)
    moved[:] = picture
    assert is_same(picture, picture_of(moved))


@pytest.mark.parametrize(("height", "width"), SIZES)
@given(place=st.integers(0), by=st.integers(1, 255))
def test_one_byte_makes_it_another(height: int, width: int, place: int, by: int) -> None:
    picture = drawn(height, width)
    other = picture.copy()
    other.reshape(-1)[place % other.size] ^= np.uint8(by)
    assert not is_same(picture, other)


def test_a_picture_of_another_shape_is_another() -> None:
    assert not is_same(drawn(8, 4), drawn(4, 8))
