"""A program that is served from an image, as it is typed: what is asked for, and what does not go with it."""

from __future__ import annotations

import pytest
from gpufleet.v1 import sessions_pb2

from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler

IMAGE = "registry.example.com/chat:1"


def asked(fake: FakeScheduler, gpuctl: Gpuctl, *typed: str) -> sessions_pb2.ServeModelRequest:
    fake.models = [sessions_pb2.Model(name="chat", max_workers=1)]
    done = gpuctl("serve", "chat", "--no-wait", *typed)
    assert done.code == 0, done.err
    request: sessions_pb2.ServeModelRequest
    (request,) = fake.asked("ServeModel")
    return request


def test_an_image_alone_is_a_program_and_brings_nothing_of_this_machine(
    fake: FakeScheduler, gpuctl: Gpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANG", "de_CH.UTF-8")
    model = asked(fake, gpuctl, "--image", IMAGE).model
    assert model.HasField("http") and not model.http.argv and not model.http.port
    worker = model.worker
    assert (worker.container.image, worker.cwd, list(worker.argv)) == (IMAGE, "", [])
    assert not {"PATH", "LANG"} & worker.env.keys()


def test_what_its_container_has_and_is_run_with_is_asked_for(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    options = ("--image", IMAGE, "--port", "8000", "--mount", "/data:/sets:ro", "--image-secret", "hub", "--gpus", "1")
    model = asked(fake, gpuctl, *options, "--ready", "/health", "--", "--model", "$PORT").model
    assert (model.http.port, model.http.ready_path, list(model.http.argv)) == (8000, "/health", ["--model", "$PORT"])
    container = model.worker.container
    (mount,) = container.mounts
    assert (mount.source, mount.target, mount.is_read_only) == ("/data", "/sets", True)
    assert (container.image_secret, model.worker.devices[0].count) == ("hub", 1)


@pytest.mark.parametrize(
    ("typed", "paths"),
    [
        (("--image", IMAGE), ["worker.container.image"]),
        (("--port", "9000"), ["http.port"]),
        (("--mount", "/data", "--image-secret", "hub"), ["worker.container.image_secret", "worker.container.mounts"]),
        (("--image", IMAGE, "--", "--fast"), ["http.argv", "worker.container.image"]),
    ],
)
def test_an_update_names_what_was_typed_of_it(
    fake: FakeScheduler, gpuctl: Gpuctl, typed: tuple[str, ...], paths: list[str]
) -> None:
    chat = sessions_pb2.Model(name="chat", max_workers=1)
    chat.http.SetInParent()
    fake.models = [chat]
    done = gpuctl("serve", "chat", "--update", "--no-wait", *typed)
    assert done.code == 0, done.err
    (request,) = fake.asked("ServeModel")
    assert list(request.update_mask.paths) == paths


@pytest.mark.parametrize(
    ("typed", "option", "step"),
    [
        (("chat", "--port", "8000", "--", "serve"), "--port", "Add --image IMAGE"),
        (("chat", "--mount", "/data", "--", "serve"), "--mount", "Add --image IMAGE"),
        (("chat", "--image", IMAGE, "--python", "/usr/bin/python3"), "--python", "Leave out one"),
        (("models:Class", "--image", IMAGE), "--image", "gpuctl serve chat --image IMAGE"),
        (("models:Class", "--predict", "--image", IMAGE), "--image", "gpuctl serve chat --image IMAGE"),
        (("chat", "--image", IMAGE, "--model-arg", "a=1"), "--model-arg", "behind the program"),
    ],
)
def test_what_does_not_go_with_it_is_named_with_what_to_type(
    fake: FakeScheduler, gpuctl: Gpuctl, typed: tuple[str, ...], option: str, step: str
) -> None:
    done = gpuctl("serve", *typed)
    assert done.code == 2 and option in done.err and step in " ".join(done.err.split()), done.err
    assert not fake.asked("ServeModel")
