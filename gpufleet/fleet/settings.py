"""What holds for this command: flag over GPUCTL_* over ./gpuctl.toml over the context in use over the default.

The rules are in gpufleet/config/cli_settings.py; this turns a command's options into flags for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from gpufleet.config.cli_settings import CliConfig, CliSettings, load_cli
from gpufleet.net.addresses import Address, addresses_text, is_loopback
from gpufleet.security.tokens import FoundToken

if TYPE_CHECKING:
    from gpufleet.net.channel import Target

    from .following.core import TimeOuts


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one command."""

    config: CliConfig

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where the scheduler and its standbys are looked for."""
        return self.config.settings.scheduler

    @property
    def where(self) -> str:
        """The same as it is typed."""
        return addresses_text(self.addresses)

    @property
    def address_origin(self) -> str:
        """Where that address came from."""
        return self.config.resolved.origins["scheduler"]

    @property
    def is_local(self) -> bool:
        """Whether the scheduler is on this machine, wherever it leads."""
        return all(is_loopback(address.host) for address in self.addresses)

    @property
    def connection_timeout_s(self) -> float:
        """The longest wait for one answer."""
        return self.config.settings.connection_timeout.total_seconds()

    @property
    def format(self) -> str:
        """How reading commands print."""
        return self.config.settings.output

    @property
    def time_outs(self) -> TimeOuts:
        """The four time-outs of a follower."""
        from .following.core import FOLLOWING_REDIAL_S_MAX, REDIAL_S_MAX, TimeOuts  # only followers pay for it

        settings = self.config.settings
        return TimeOuts(
            connection_s=self.connection_timeout_s,
            max_wait_s=settings.max_wait_time.total_seconds(),
            unanswered_max=settings.max_consecutive_timeouts,
            session_s=settings.session_timeout.total_seconds(),
            redial_s_max=REDIAL_S_MAX if len(self.addresses) == 1 else FOLLOWING_REDIAL_S_MAX,
        )

    def only(self, address: Address, answer_s_max: float) -> Settings:
        """The same for one of the addresses alone, which has so long to answer."""
        now = self.config.settings
        timeout = min(now.connection_timeout, timedelta(seconds=answer_s_max))
        changed = replace(now, scheduler=(address,), connection_timeout=timeout)
        return Settings(self.config._replace(resolved=self.config.resolved._replace(settings=changed)))

    def token(self) -> FoundToken | None:
        """The token to call with; None where none is named."""
        return self.config.token()

    def target(self) -> Target:
        """The server to connect to. Raises for a token that is named and unusable."""
        from gpufleet.net.channel import Target  # brings grpc, which showing settings does not need

        token = self.token()
        return Target(
            address=self.addresses[0],
            others=self.addresses[1:],
            token=token.token if token else None,
            ca_file=self.config.settings.ca_file,
            client_cert_file=self.config.settings.client_cert_file,
            is_insecure=self.config.settings.insecure,
        )


class Typed(Protocol):
    """The options of a command that settings are made of: those of the same names."""

    @property
    def context(self) -> str | None: ...


def resolve(options: Typed, *, jobs: Sequence[str] = ()) -> Settings:
    """The settings that these options and everything below them make. Raises CONFIG_INVALID.

    `jobs` is what a command names that is about these jobs alone: inside a job that may be the job itself.
    """
    typed = {each.name: getattr(options, each.name, None) for each in fields(CliSettings)}
    flags = {name: value for name, value in typed.items() if value is not False}
    return Settings(load_cli(flags, context=options.context, jobs=jobs))
