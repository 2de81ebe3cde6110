"""Images: each is pulled once, however many ask for it at a time, and a private one is nobody's who may not pull it."""

from __future__ import annotations

import base64
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpufleet.host.whole_file import replace_file

from ..core.launch import ContainerAsked, RefusalReason
from .engine import ContainerTrouble, refusing, said_by
from .pulling import Pull

_log = logging.getLogger(__name__)

PULL_TRIES = 3
PULL_SECONDS_MAX = 3600
"""How long an image may come, all tries together."""

PULLS_AT_ONCE_MAX = 4
"""So many launches of a node have their images come at a time; more wait, and nothing else that its agent does."""

UNTOLD_SECONDS_MAX = 1.0
"""An image that another launch has for no longer than this was here all the time."""

RECORD = "private-images.json"
PRIVATE_MAX = 10_000
"""Images of which is known who may have them; beyond it none is taken for public that once was private."""

DENIED = re.compile(r"denied|unauthorized|authentication required|no basic auth|\b40[13]\b", re.IGNORECASE)
MISSING = re.compile(
    r"not found|(?:manifest|name) unknown|does not exist|not known|no such image|\b404\b", re.IGNORECASE
)


Tell = Callable[[str, bool, str], None]
"""Hears of an image that comes: which, whether it is there now, and how far it is, in words."""


class Images:
    """Has images come. `folder` keeps who had which private one. Its methods block: for threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._locks: dict[str, tuple[threading.Lock, int]] = {}
        self._guard = threading.Lock()

    def have(
        self, client: Any, asked: ContainerAsked, user: str, tell: Tell = lambda image, is_here, message: None
    ) -> bool:
        """Have an image here for a user; whether it was pulled now. Errors: ContainerTrouble.

        One that came by somebody's credentials is pulled again for whoever has not shown theirs: what is here already
        is not sent again, but the registry says whether they may have it. What comes is told of; what is here is not.
        """
        image = with_tag(asked.image)
        with self._lock(image, lambda: tell(image, False, "another job has it come")) as has_waited:
            repository = _parted(image)[0]
            known = self._private().get(repository)
            if (known is None or user in known) and _is_here(client, image):
                if has_waited:
                    tell(image, True, "")
                return False
            self._pull(client, image, asked.credentials, tell)
            if asked.credentials or known is not None:
                self._note(repository, user)
            return True

    def _pull(self, client: Any, image: str, credentials: str, tell: Tell) -> None:
        auth = auth_of(credentials, image) if credentials else {}
        repository, tag = _parted(image)
        deadline = time.monotonic() + PULL_SECONDS_MAX
        _log.info("pulling image %s", image)
        tell(image, False, "")
        progress = Pull(begun_at=time.monotonic())
        for number in range(PULL_TRIES):
            try:
                with refusing(RefusalReason.IMAGE_PULL_FAILED, "", lambda error: _trouble(image, said_by(error))):
                    for step in client.pull(repository, tag=tag, stream=True, decode=True, auth_config=auth):
                        if step.get("error"):
                            raise _trouble(image, " ".join(str(step["error"]).split()))
                        now = time.monotonic()
                        if far := progress.take(step, now):
                            tell(image, False, far)
                        if now > deadline:
                            why = f"image {image} was not here after {PULL_SECONDS_MAX // 60} minutes"
                            raise ContainerTrouble(RefusalReason.IMAGE_PULL_FAILED, why)
                break
            except ContainerTrouble as trouble:
                if number + 1 == PULL_TRIES or not trouble.may_pass:
                    raise
        size_bytes = _size_of(client, image)
        if size_bytes is None:
            raise ContainerTrouble(RefusalReason.IMAGE_PULL_FAILED, f"image {image} was pulled, and is not there")
        tell(image, True, progress.end(size_bytes, time.monotonic()))

    @contextmanager
    def _lock(self, image: str, waiting: Callable[[], None]) -> Iterator[bool]:
        """Hold an image against all others; answers whether somebody had it for a while, which `waiting` is told of."""
        with self._guard:
            lock, count = self._locks.get(image, (threading.Lock(), 0))
            self._locks[image] = (lock, count + 1)
        try:
            if has_waited := not lock.acquire(timeout=UNTOLD_SECONDS_MAX):
                waiting()
                lock.acquire()
            try:
                yield has_waited
            finally:
                lock.release()
        finally:
            with self._guard:
                lock, count = self._locks.pop(image)
                if count > 1:
                    self._locks[image] = (lock, count - 1)

    def _private(self) -> dict[str, list[str]]:
        try:
            found: dict[str, list[str]] = json.loads((self._folder / RECORD).read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as problem:
            why = f"who may have private images cannot be read: {self._folder / RECORD}: {problem}"
            raise ContainerTrouble(RefusalReason.CONTAINER_FAILED, why) from None
        return found

    def _note(self, repository: str, user: str) -> None:
        with self._guard:
            known = self._private()
            if repository not in known and len(known) >= PRIVATE_MAX:
                raise ContainerTrouble(RefusalReason.CONTAINER_FAILED, f"more than {PRIVATE_MAX} private images")
            known[repository] = sorted({*known.get(repository, []), user})
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._folder / RECORD, json.dumps(known).encode())


def _is_here(client: Any, image: str) -> bool:
    return _size_of(client, image) is not None


def _size_of(client: Any, image: str) -> int | None:
    """The bytes of an image, unpacked; None where it is not here."""
    import docker.errors

    with refusing(RefusalReason.NO_ENGINE, "the container engine does not answer"):
        try:
            return int(client.inspect_image(image).get("Size") or 0)
        except docker.errors.NotFound:
            return None


def with_tag(image: str) -> str:
    """An image with the tag that an engine takes where none is named."""
    last = image.rsplit("/", 1)[-1]
    return image if ":" in last or "@" in last else f"{image}:latest"


def _parted(image: str) -> tuple[str, str]:
    if "@" in image:
        repository, _, digest = image.partition("@")
        return repository, digest
    repository, _, tag = image.rpartition(":")
    return repository, tag


def _trouble(image: str, said: str) -> ContainerTrouble:
    # What somebody called it is no word of the registry's: a tag may be 401.
    repository, tag = _parted(image)
    names = "|".join(map(re.escape, (image, repository, tag)))
    words = re.sub(rf"(?<![\w.])(?:{names})(?![\w.])", "", said)
    if DENIED.search(words):
        why = f"the registry does not give image {image}: {said}; give --image-secret NAME, see: gpuctl secret set NAME"
        return ContainerTrouble(RefusalReason.IMAGE_PULL_FAILED, why)
    if MISSING.search(words):
        return ContainerTrouble(RefusalReason.IMAGE_NOT_FOUND, f"there is no image {image}: {said}")
    why = f"image {image} cannot be pulled: {said}"
    return ContainerTrouble(RefusalReason.IMAGE_PULL_FAILED, why, may_pass=True)


def auth_of(credentials: str, image: str) -> dict[str, str]:
    """What a registry takes, from USER:PASSWORD or a config.json of docker login. Errors: ContainerTrouble.

    No error shows any of it.
    """
    registry = registry_of(image)
    if credentials.lstrip().startswith("{"):
        try:
            auths = json.loads(credentials)["auths"]
            found = auths.get(registry) or auths.get(f"https://{registry}")
            if found is None and registry == DOCKER_HUB:
                found = auths.get("https://index.docker.io/v1/")
            if found is None:
                raise KeyError(registry)
            if "auth" in found:
                user, _, password = base64.b64decode(found["auth"]).decode().partition(":")
            else:
                user, password = found["username"], found["password"]
        except (ValueError, KeyError, TypeError, AttributeError):
            why = f"the image's secret is no config.json of docker login that knows {registry}"
            raise ContainerTrouble(RefusalReason.IMAGE_PULL_FAILED, why) from None
    else:
        user, colon, password = credentials.strip().partition(":")
        if not colon:
            why = "the image's secret is neither USER:PASSWORD nor a config.json of docker login"
            raise ContainerTrouble(RefusalReason.IMAGE_PULL_FAILED, why)
    return {"username": user, "password": password, "serveraddress": registry}


DOCKER_HUB = "docker.io"


def registry_of(image: str) -> str:
    """The registry that an image is pulled from."""
    first, slash, _ = image.partition("/")
    is_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
    return first if is_host else DOCKER_HUB
