"""Images: how often they are pulled, and for whom."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker.errors
import pytest

from node_agent.containers.engine import ContainerTrouble
from node_agent.containers.images import Images, auth_of, registry_of, with_tag
from node_agent.core.launch import ContainerAsked, RefusalReason


class FakeEngine:
    """An engine with a registry that gives its image to who has the password."""

    def __init__(self, password: str = "") -> None:
        self.password = password
        self.here: set[str] = set()
        self.pulls = 0
        self.said = ""

    def inspect_image(self, image: str) -> dict[str, int]:
        if image not in self.here:
            raise docker.errors.ImageNotFound("no such image")
        return {"Size": 4_000_000}

    def pull(self, repository: str, tag: str, auth_config: dict[str, str], **_: Any) -> Iterator[dict[str, str]]:
        self.pulls += 1
        if self.said or auth_config.get("password", "") != self.password:
            yield {"error": self.said or "denied: requested access to the resource is denied"}
            return
        self.here.add(f"{repository}:{tag}")


def asked(credentials: str = "", image: str = "reg.example:5000/team/model:3") -> ContainerAsked:
    return ContainerAsked(image=image, credentials=credentials)


def test_many_who_ask_at_a_time_pull_once(tmp_path: Path) -> None:
    engine, images = FakeEngine(), Images(tmp_path)
    threads = [threading.Thread(target=images.have, args=(engine, asked(), "ada")) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert engine.pulls == 1


def test_a_private_image_is_nobodys_who_may_not_pull_it(tmp_path: Path) -> None:
    engine, images = FakeEngine("secret"), Images(tmp_path)
    assert images.have(engine, asked("ada:secret"), "ada")
    assert not images.have(engine, asked("ada:secret"), "ada"), "she has shown that she may have it"
    for those in (images, Images(tmp_path)):  # also after a restart
        for image in ("reg.example:5000/team/model:3", "reg.example:5000/team/model"):
            with pytest.raises(ContainerTrouble, match="--image-secret"):
                those.have(engine, asked(image=image), "bob")
    assert images.have(engine, asked("bob:secret"), "bob")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("manifest unknown", RefusalReason.IMAGE_NOT_FOUND),
        # Docker Engine
        ("manifest for reg.example:5000/team/model:3 not found: manifest unknown", RefusalReason.IMAGE_NOT_FOUND),
        (
            "pull access denied for reg.example:5000/team/model, repository does not exist or may require 'docker "
            "login': denied: requested access to the resource is denied",
            RefusalReason.IMAGE_PULL_FAILED,
        ),
        # Podman
        (
            "initializing source docker://reg.example:5000/team/model:3: reading manifest 3 in "
            "reg.example:5000/team/model: manifest unknown: manifest unknown",
            RefusalReason.IMAGE_NOT_FOUND,
        ),
        (
            "initializing source docker://reg.example:5000/team/model:3: Requesting bear token: invalid status code "
            "from registry 404 (Not Found)",
            RefusalReason.IMAGE_NOT_FOUND,
        ),
        (
            "initializing source docker://reg.example:5000/team/model:3: reading manifest 3 in "
            "reg.example:5000/team/model: unauthorized: authentication required",
            RefusalReason.IMAGE_PULL_FAILED,
        ),
        ("unauthorized: authentication required", RefusalReason.IMAGE_PULL_FAILED),
        ("dial tcp: connection refused", RefusalReason.IMAGE_PULL_FAILED),
    ],
)
def test_why_an_image_does_not_come_is_told_and_what_may_pass_is_tried_again(
    tmp_path: Path, said: str, reason: RefusalReason
) -> None:
    engine, images = FakeEngine(), Images(tmp_path)
    engine.said = said
    with pytest.raises(ContainerTrouble) as caught:
        images.have(engine, asked(), "ada")
    assert caught.value.refusal.reason is reason
    assert said in caught.value.refusal.detail
    assert engine.pulls == (3 if "refused" in said else 1)


@pytest.mark.parametrize("tag", ["401", "404", "not-found", "denied"])
def test_what_an_image_is_called_says_nothing_of_why_it_does_not_come(tmp_path: Path, tag: str) -> None:
    engine, image = FakeEngine(), f"reg.example/{tag}/denied:{tag}"
    engine.said = (
        f"initializing source docker://{image}: reading manifest {tag} in reg.example/{tag}/denied: pinging container "
        "registry reg.example: dial tcp 10.0.0.1:443: connect: connection refused"
    )
    with pytest.raises(ContainerTrouble, match="cannot be pulled") as caught:
        Images(tmp_path).have(engine, asked(image=image), "ada")
    assert caught.value.refusal.reason is RefusalReason.IMAGE_PULL_FAILED
    assert "--image-secret" not in caught.value.refusal.detail and engine.pulls == 3, "that may pass"


def test_what_a_registry_takes_is_read_from_either_form_and_shown_in_no_error() -> None:
    wanted = {"username": "ada", "password": "se:cret", "serveraddress": "reg.example"}
    encoded = base64.b64encode(b"ada:se:cret").decode()
    for text in ("ada:se:cret", json.dumps({"auths": {"reg.example": {"auth": encoded}}})):
        assert auth_of(text, "reg.example/model:1") == wanted
    for text in ("password-alone", "{", json.dumps({"auths": {"elsewhere": {"auth": encoded}}}), '{"auths": 3}'):
        with pytest.raises(ContainerTrouble) as caught:
            auth_of(text, "reg.example/model:1")
        assert "password-alone" not in caught.value.refusal.detail
        assert encoded not in caught.value.refusal.detail
    assert "se:cret" not in repr(ContainerAsked(image="x", credentials="ada:se:cret"))


def test_names_of_images() -> None:
    assert with_tag("reg.example:5000/a") == "reg.example:5000/a:latest"
    assert with_tag("a@sha256:00") == "a@sha256:00"
    assert [registry_of(each) for each in ("ubuntu", "team/a:1", "reg:5000/a", "localhost/a")] == [
        "docker.io",
        "docker.io",
        "reg:5000",
        "localhost",
    ]


def test_a_pull_that_never_comes_to_its_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node_agent.containers.images.PULL_SECONDS_MAX", -1)
    engine = FakeEngine()
    monkeypatch.setattr(engine, "pull", lambda *words, **more: iter([{"status": "Downloading"}] * 2))
    with pytest.raises(ContainerTrouble, match="was not here after"):
        Images(tmp_path).have(engine, asked(), "ada")


def test_a_pull_is_told_of_from_its_beginning_to_its_end_and_what_is_here_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, images, told = FakeEngine(), Images(tmp_path), list[tuple[str, bool, str]]()

    def pull(repository: str, tag: str, **_: Any) -> Iterator[dict[str, Any]]:
        for come in (10, 30, 90):
            progress = {"current": come * 1_000_000, "total": 100_000_000}
            yield {"status": "Downloading", "id": "a", "progressDetail": progress}
        engine.here.add(f"{repository}:{tag}")

    monkeypatch.setattr(engine, "pull", pull)
    image = "reg.example:5000/team/model:3"
    for _ in range(2):
        images.have(engine, asked(), "ada", lambda *what: told.append(what))
    assert told == [
        (image, False, ""),
        (image, False, "30MB of 100MB have come"),
        (image, False, "90MB of 100MB have come"),
        (image, True, "4MB, in 1s"),
    ]


def test_who_waits_for_the_pull_of_another_job_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node_agent.containers.images.UNTOLD_SECONDS_MAX", 0.01)
    engine, images, told = FakeEngine(), Images(tmp_path), list[tuple[str, bool, str]]()
    pulls, waits = threading.Event(), threading.Event()

    def pull(repository: str, tag: str, **_: Any) -> Iterator[dict[str, Any]]:
        pulls.set()
        assert waits.wait(30)
        engine.here.add(f"{repository}:{tag}")
        yield {}

    def tell(image: str, is_here: bool, message: str) -> None:
        told.append((image, is_here, message))
        waits.set()

    monkeypatch.setattr(engine, "pull", pull)
    first = threading.Thread(target=images.have, args=(engine, asked(), "ada"))
    first.start()
    assert pulls.wait(30)
    images.have(engine, asked(), "bob", tell)
    first.join()
    image = "reg.example:5000/team/model:3"
    assert told == [(image, False, "another job has it come"), (image, True, "")]
