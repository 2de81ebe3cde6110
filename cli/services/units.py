"""What a systemd unit of a program says. Pure: from values to text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MARK = "# Written by gpuctl install; gpuctl uninstall removes it."
"""The first line: what does not begin with it is somebody else's."""

MODULES: Mapping[str, str] = {"scheduler": "scheduler", "agent": "node_agent", "gateway": "gateway"}
"""Programs that can be services, and the module of each."""

SUBGROUPS_SINCE = 254
"""The systemd that keeps a unit's own process apart in a control group of its own."""

FILE_OPTIONS: Mapping[str, str] = {
    "--token-file": "token",
    "--tls-cert": "tls-cert",
    "--tls-key": "tls-key",
    "--ca-file": "ca",
    "--client-cert-file": "client-cert",
}
"""Options that name a file which root may read and the program is given as a credential, by the credential's name."""

HARDENING = (
    "NoNewPrivileges=yes",
    "ProtectSystem=strict",
    "PrivateTmp=yes",
    "PrivateDevices=yes",
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelLogs=yes",
    "ProtectControlGroups=yes",
    "ProtectClock=yes",
    "ProtectHostname=yes",
    "ProtectProc=invisible",
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "LockPersonality=yes",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
    "SystemCallErrorNumber=EPERM",
    "UMask=0077",
)
"""What a program that serves and starts nothing can do without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One service; `options` are the program's own, its files by absolute paths.

    `interpreter` are the places that starting `python` reads: its own, its links' ends, its environment, gpufleet.
    Without an `account` the agent is root, and another program has one of systemd's making. `version` is systemd's.
    """

    program: str
    python: Path
    interpreter: Sequence[Path] = ()
    options: Sequence[str] = ()
    config: Path | None = None
    account: str = ""
    is_of_user: bool = False
    version: int = SUBGROUPS_SINCE

    @property
    def name(self) -> str:
        return f"gpufleet-{self.program}.service"

    @property
    def data(self) -> str:
        """Its data folder, which systemd makes; empty for a service of a user: the program's usual one."""
        return "" if self.is_of_user else f"/var/lib/gpufleet/{self.program}"

    def text(self) -> str:
        """The whole file."""
        options, credentials = self._files()
        return "\n".join(
            [
                MARK,
                "[Unit]",
                f"Description=gpufleet {self.program}",
                "Wants=network-online.target",
                "After=network-online.target",
                "# It is started again for as long as it takes: a scheduler or a database may be away for hours.",
                "StartLimitIntervalSec=0",
                "",
                "[Service]",
                "Type=notify",
                f"ExecStart={' '.join(map(quoted, self._command()))} {' '.join(options)}".rstrip(),
                "ExecReload=/bin/kill -HUP $MAINPID",
                "Restart=on-failure",
                "RestartSec=2",
                # A store may take long to be opened, and another scheduler to leave it.
                f"TimeoutStartSec={'infinity' if self.program == 'scheduler' else '90'}",
                "TimeoutStopSec=30",
                "WatchdogSec=60",
                "LimitNOFILE=65536",
                *credentials,
                *self._place(),
                *self._rights(),
                "",
                "[Install]",
                f"WantedBy={'default.target' if self.is_of_user else 'multi-user.target'}",
                "",
            ]
        )

    def _command(self) -> list[str]:
        command = [str(self.python), "-P", "-m", f"gpufleet.{MODULES[self.program]}"]
        if self.data:
            command += ["--data", self.data]
        if self.config is not None:
            command += ["--config", str(self.config)]
        return command

    def _files(self) -> tuple[list[str], list[str]]:
        """The options as they stand in the unit, and the lines of its credentials."""
        words, credentials = list[str](), list[str]()
        pending = ""
        for option in self.options:
            name = FILE_OPTIONS.get(pending) if self._is_credential(pending) else None
            if name is None:
                words.append(quoted(option))
            else:
                credentials.append(f"LoadCredential={name}:{option.replace('%', '%%')}")
                words.append(f"%d/{name}")
            pending = option
        return words, credentials

    def _is_credential(self, option: str) -> bool:
        # What an agent's jobs are to find, too, stays where it is.
        return not self.is_of_user and (self.program != "agent" or option == "--token-file")

    def _place(self) -> list[str]:
        if self.is_of_user:
            return []
        return [
            f"StateDirectory=gpufleet/{self.program}",
            "StateDirectoryMode=0700",
            f"Environment=XDG_CONFIG_HOME={self.data}/config XDG_STATE_HOME={self.data}/state",
        ]

    def _rights(self) -> list[str]:
        if self.program == "agent":
            delegated = ["Delegate=yes"]
            if self.version >= SUBGROUPS_SINCE:
                delegated.append("DelegateSubgroup=agent")
            return [
                "# Jobs and their keeper outlive a restart of the agent. What is forbidden here would be so to jobs as",
                "# well; what each of them may do is the agent's business.",
                "KillMode=process",
                *delegated,
                "TasksMax=infinity",
                "OOMPolicy=continue",
                *([f"User={self.account}"] if self.account else []),
            ]
        if self.is_of_user:
            return ["NoNewPrivileges=yes", "UMask=0077"]
        account = [f"User={self.account}"] if self.account else ["DynamicUser=yes"]
        home = "read-only" if self._is_at_home else "yes"
        return [*account, *HARDENING, f"ProtectHome={home}", *self._ports()]

    @property
    def _is_at_home(self) -> bool:
        """Whether what it reads lies where people's folders are."""
        return any(path.is_relative_to(folder) for path in self.interpreter for folder in ("/home", "/root"))

    def _ports(self) -> list[str]:
        if self.program != "gateway":
            return ["CapabilityBoundingSet="]
        # A page for people is at 443.
        return ["CapabilityBoundingSet=CAP_NET_BIND_SERVICE", "AmbientCapabilities=CAP_NET_BIND_SERVICE"]


def quoted(word: str) -> str:
    """A word of a command line as a unit has it: nothing in it is expanded."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    plain = bool(word) and not set(word) & set(" \t;'\"\\")
    return escaped if plain else f'"{escaped}"'
