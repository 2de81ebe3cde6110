"""Whether the data folders of the schedulers of one store hold the same keys, without anybody telling them.

Of each key there is a fingerprint in the store, which tells nothing of the key: 32 random bytes are behind it. Whoever
leads keeps them there. A scheduler that stood by with another key would refuse every node, worker and job of the fleet
once it leads, so it is refused at its start, with the line that copies the keys to it.
"""

import hashlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.errors import GpufleetError, Reason

from ..key_files import read_key
from ..secret_box import KEY_FILE as SECRETS_KEY_FILE
from ..worker_secrets import KEY_FILE as WORKERS_KEY_FILE

NEEDED = WORKERS_KEY_FILE
"""Without this key nobody takes over: tokens of nodes, workers and jobs follow from it, and what seals positions."""

FINGERPRINT_CHARS = 16


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a key is told by, and where a copy of it is."""

    file: str
    fingerprint: str
    host: str
    path: str


def key_files(settings: SchedulerSettings) -> dict[str, Path]:
    """Where each of the keys is, by its name."""
    return {
        WORKERS_KEY_FILE: settings.data / WORKERS_KEY_FILE,
        SECRETS_KEY_FILE: settings.secrets.key_file or settings.data / SECRETS_KEY_FILE,
    }


def fingerprints_of(settings: SchedulerSettings) -> dict[str, Fingerprint]:
    """The keys that are there. Errors: TOKEN_FILE_EXPOSED, CONFIG_INVALID, FILE_NOT_FOUND where one cannot be read."""
    found = {}
    for name, path in key_files(settings).items():
        if path.exists():
            digest = hashlib.sha256(b"gpufleet key fingerprint\0" + read_key(path, "")).hexdigest()
            found[name] = Fingerprint(name, digest[:FINGERPRINT_CHARS], socket.gethostname(), str(path.absolute()))
    return found


def differences(own: Mapping[str, Fingerprint], stored: Mapping[str, Fingerprint]) -> dict[str, str]:
    """What is wrong with one's own keys, a clause for each file; empty where they are those of the store."""
    found = {}
    for name, leaders in stored.items():
        if name not in own:
            found[name] = f"{name} is missing"
        elif own[name].fingerprint != leaders.fingerprint:
            found[name] = f"{name} is another"
    return found


def check_keys(settings: SchedulerSettings, stored: Mapping[str, Fingerprint]) -> None:
    """Refuse to stand by with other keys than those of the store, and say how to copy them. Errors: KEYS_DIFFER."""
    wrong = differences(fingerprints_of(settings), stored)
    if wrong:
        raise GpufleetError(
            Reason.KEYS_DIFFER,
            f"the keys in {settings.data} are not those of the scheduler that leads: {', '.join(wrong.values())}",
            next_step=copying(settings, [stored[name] for name in wrong]),
        )


def copying(settings: SchedulerSettings, stored: list[Fingerprint]) -> str:
    """What to type to have the keys of who leads."""
    own, places = socket.gethostname(), key_files(settings)
    lines = [
        f"{'cp -p' if each.host == own else 'scp -p'} {'' if each.host == own else each.host + ':'}{each.path}"
        f" {places[each.file].absolute()}"
        for each in stored
        if each.file in places
    ]
    return f"Copy them and start again: {' && '.join(lines)}"
