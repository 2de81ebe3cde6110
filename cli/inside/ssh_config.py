"""What OpenSSH's client is told of a job: where it is, who it is there, and by what both know each other."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from gpufleet.host.whole_file import replace_file

from .ssh_keys import HostKeys, ssh_folder

SSH_CONFIG = Path(".ssh", "config")
"""In the home folder: what ssh reads."""

CONFIG = "config"
"""In the folder of keys: what `ssh-config --install` wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SshHost:
    """A job as ssh sees it. `user` is its account on its node, `proxy` the command whose descriptors lead to it."""

    keys: HostKeys
    own_key: Path
    user: str
    proxy: tuple[str, ...]

    def options(self) -> dict[str, str]:
        """The options of ssh_config(5)."""
        return {
            "HostName": self.keys.name,
            "HostKeyAlias": self.keys.name,
            "User": self.user,
            # % is ssh's own sign here.
            "ProxyCommand": shlex.join(self.proxy).replace("%", "%%"),
            "IdentityFile": _quoted(self.own_key),
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": _quoted(self.keys.known_hosts),
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
            "UpdateHostKeys": "no",
            "CheckHostIP": "no",
        }

    def as_words(self) -> list[str]:
        """The options as ssh's command line has them."""
        return [word for name, value in self.options().items() for word in ("-o", f"{name}={value}")]

    def as_block(self) -> str:
        """The options as a file has them."""
        lines = "".join(f"    {name} {value}\n" for name, value in self.options().items())
        return f"Host {self.keys.name}\n{lines}"


def install(blocks: str, home: Path) -> Path:
    """Have ssh read these blocks, and no older ones of ours; answers the file in which they are. Errors: OSError."""
    path = ssh_folder() / CONFIG
    replace_file(path, blocks.encode(), is_synced=False)
    config = (home / SSH_CONFIG).resolve()
    config.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    line = f"Include {_quoted(path)}\n"
    text = config.read_text(errors="surrogateescape") if config.exists() else ""
    if line not in text.splitlines(keepends=True):
        # First: what stands behind a Host belongs to it.
        replace_file(config, f"{line}{text}".encode(errors="surrogateescape"), is_synced=False)
    return path


def _quoted(path: Path) -> str:
    return f'"{path}"'.replace("%", "%%")
