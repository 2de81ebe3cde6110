"""The engine of this machine, asked by its SDK: which there is, what it can, and its refusals in our words.

Docker Engine and Podman's service speak the same API. Whoever reaches its socket is root on this machine, or, of a
rootless one, the account that runs it: the agent alone reaches it, no job.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.launch import Refusal, RefusalReason

AUTO, NONE = "auto", "none"

for _name in ("docker", "urllib3"):
    # At the level of debugging each call has lines of its own, which say nothing of jobs.
    logging.getLogger(_name).setLevel(logging.WARNING)
SCHEME = "unix://"

ANSWER_SECONDS_MAX = 60
"""What an engine may take for a call; it is slow while it works for others."""

CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""Where the Container Device Interface has its descriptions of devices."""
CDI_KIND = "nvidia.com/gpu"

BY_NVIDIA, BY_CDI, BY_NODES = "nvidia", "cdi", "device nodes"
"""How containers are given GPUs: by NVIDIA's run-time hook, by CDI, or, of AMD and virtual ones, by their nodes."""

WHY_CHARS_MAX = 1000


class ContainerTrouble(Exception):
    """No container can be had; the launch is refused with this. `may_pass`: it is worth another try."""

    def __init__(self, reason: RefusalReason, detail: str, *, may_pass: bool = False) -> None:
        super().__init__(detail)
        self.may_pass = may_pass
        self.refusal = Refusal(reason, detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What this machine has: `name` and version of the engine, empty where there is none, and then why and what to do.

    `has_init`: the engine has an init to put into containers. `is_rootless`: it is of this account alone.
    """

    socket: str = ""
    name: str = ""
    problem: str = ""
    fix: str = ""
    nvidia_by: str = ""
    has_init: bool = True
    is_podman: bool = False
    is_rootless: bool = False


class Engine:
    """Speaks with the engine that the settings name: "auto", "none" or unix://PATH. Its methods block: for threads."""

    def __init__(self, wanted: str = AUTO, environment: Mapping[str, str] = os.environ) -> None:
        self._wanted = wanted
        self._environment = environment
        self._local = threading.local()

    def look(self) -> EngineFacts:
        """Find out what there is now. Never raises."""
        if self._wanted == NONE:
            return EngineFacts(problem="its agent is told to use none", fix='Set [containers] engine = "auto".')
        sockets = [path for path in self._candidates() if Path(path).is_socket()]
        if not sockets:
            return EngineFacts(
                problem="it has no container engine" if self._wanted == AUTO else f"{self._wanted} is not there",
                fix="Install Docker, or Podman and: systemctl enable --now podman.socket",
            )
        problem = ""
        for path in sockets:
            try:
                return _of_this_account(self._facts(path))
            except ContainerTrouble as trouble:
                problem = problem or trouble.refusal.detail
        return EngineFacts(
            socket=sockets[0],
            problem=problem,
            fix="See that the agent's account may use the socket, and the service runs.",
        )

    def client(self, socket_path: str) -> Any:
        """The SDK's client of an engine, one for each thread. Errors: ContainerTrouble NO_ENGINE."""
        known: dict[str, Any] = self._local.__dict__.setdefault("clients", {})
        if socket_path not in known:
            try:
                import docker
            except ImportError:
                why = "the agent lacks the package docker: pip install 'gpufleet[containers]'"
                raise ContainerTrouble(RefusalReason.NO_ENGINE, why) from None
            known[socket_path] = docker.APIClient(
                base_url=SCHEME + socket_path, version="1.41", timeout=ANSWER_SECONDS_MAX
            )
        return known[socket_path]

    def _facts(self, path: str) -> EngineFacts:
        client = self.client(path)
        with refusing(RefusalReason.NO_ENGINE, "the container engine does not answer"):
            version, info = client.version(), client.info()
        parts = [part.get("Name", "") for part in version.get("Components") or ()]
        is_podman = any("podman" in part.lower() for part in parts)
        options = [str(option) for option in info.get("SecurityOptions") or ()]
        return EngineFacts(
            socket=path,
            name=f"{'podman' if is_podman else 'docker'} {version.get('Version', '')}".strip(),
            nvidia_by=_nvidia_by(info, is_podman=is_podman),
            is_podman=is_podman,
            has_init=not is_podman or _has_podmans_init(),
            # Docker says it among its options, Podman by a field of its own.
            is_rootless=bool(info.get("Rootless")) or any("rootless" in option for option in options),
        )

    def _candidates(self) -> Iterator[str]:
        if self._wanted != AUTO:
            yield self._wanted.removeprefix(SCHEME)
            return
        host = self._environment.get("DOCKER_HOST", "")
        if host.startswith(SCHEME):
            yield host.removeprefix(SCHEME)
        yield "/var/run/docker.sock"
        yield "/run/podman/podman.sock"
        runtime = self._environment.get("XDG_RUNTIME_DIR", "")
        if runtime:
            yield f"{runtime}/podman/podman.sock"
            yield f"{runtime}/docker.sock"


def _of_this_account(facts: EngineFacts) -> EngineFacts:
    """The engine, unless it is a rootless one of another account: that could read no folder of the agent's jobs."""
    owner = Path(facts.socket).stat().st_uid if facts.is_rootless else os.geteuid()
    if owner == os.geteuid():
        return facts
    return EngineFacts(
        socket=facts.socket,
        problem=f"the rootless engine at {facts.socket} is of account {owner}, and the agent runs as {os.geteuid()}",
        fix="Run the agent as that account, or name an engine of the machine's: systemctl enable --now podman.socket",
    )


PODMANS_INITS = (Path("/usr/libexec/podman/catatonit"), Path("/usr/bin/catatonit"), Path("/usr/local/bin/catatonit"))


def _has_podmans_init() -> bool:
    """Podman has none of its own, and refuses to put in one that is not there."""
    return any(path.exists() for path in PODMANS_INITS)


def _nvidia_by(info: Mapping[str, Any], *, is_podman: bool) -> str:
    if any(CDI_KIND in _beginning(file) for folder in CDI_FOLDERS for file in _files(folder)):
        return BY_CDI if is_podman or info.get("CDISpecDirs") else _nvidia_hook(info)
    return "" if is_podman else _nvidia_hook(info)


def _nvidia_hook(info: Mapping[str, Any]) -> str:
    hooks = (Path("/usr/bin/nvidia-container-runtime-hook"), Path("/usr/bin/nvidia-container-toolkit"))
    return BY_NVIDIA if "nvidia" in (info.get("Runtimes") or {}) or any(map(Path.exists, hooks)) else ""


def _files(folder: Path) -> list[Path]:
    try:
        return [file for file in folder.iterdir() if file.suffix in (".yaml", ".yml", ".json")]
    except OSError:
        return []


def _beginning(file: Path) -> str:
    try:
        with file.open(errors="replace") as opened:
            return opened.read(65_536)
    except OSError:
        return ""


@contextlib.contextmanager
def refusing(
    reason: RefusalReason, what: str, also: Callable[[Exception], ContainerTrouble | None] = lambda error: None
) -> Iterator[None]:
    """Turn what the SDK raises into a refusal; `also` may know better."""
    import docker.errors
    import requests

    try:
        yield
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        raise also(error) or ContainerTrouble(reason, f"{what}: {said_by(error)}") from None


def said_by(error: Exception) -> str:
    """The engine's own words, on one line."""
    explanation = getattr(error, "explanation", None) or str(error)
    return " ".join(str(explanation).split())[:WHY_CHARS_MAX]
