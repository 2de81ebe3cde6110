"""What a model says of itself to people, as its class has it."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.model import Card, Inputs, Session, media_type_of, traits_of
from inference.loading import Wanted, load


class Plain:
    def open(self, session: Session) -> None:
        return None

    def step(self, state: None, inputs: Inputs) -> Any:
        return None

    def close(self, state: None) -> None:
        pass


def test_a_model_that_says_nothing_has_an_empty_card() -> None:
    assert traits_of(Plain()).card == Card()


def test_what_a_class_says_is_its_card() -> None:
    class Steered(Plain):
        title = "Steered"
        about = """A marble
            on a board."""
        controls = "Arrows tilt it."
        keys = ("ArrowLeft", " ")

    expected = Card(title="Steered", about="A marble on a board.", controls="Arrows tilt it.", keys=("ArrowLeft", " "))
    assert traits_of(Steered()).card == expected


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("title", "x" * 81, "title should be a text of at most 80 characters"),
        ("about", 5, "about should be a text of at most 400 characters"),
        ("keys", "abc", "keys should be a list of at most 24 keys"),
        ("keys", [""], "keys should be a list of at most 24 keys"),
        ("picture", "test_card.py", "picture should be a JPEG, PNG or WebP of at most 200,000 bytes"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(name: str, value: object, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        traits_of(type("Wrong", (Plain,), {name: value, "__module__": __name__})())


@pytest.mark.parametrize("model", ["test-pattern", "canvas"])
def test_models_that_come_with_gpufleet_say_what_they_are(model: str) -> None:
    card = load(Wanted(entry_point=model, arguments={}, device="cpu"), lambda *_: None).traits.card
    assert card.title and card.about and card.controls
    assert media_type_of(card.picture) in ("image/jpeg", "image/png")
