"""What the keeper has to say to an agent, kept until an agent acknowledges it."""

from collections.abc import Callable

from gpufleet.jobs.runs import RankKey

from .values import Json

STARTED = "started"
ENDED = "ended"
SPOOL = "spool"
KINDS = (STARTED, ENDED, SPOOL)


class Reports:
    """At most one report of each kind per attempt: a newer one takes the older one's place, at the end."""

    def __init__(self, send: Callable[[Json], None]) -> None:
        self._send = send
        self._last_sequence = 0
        self._unacknowledged: dict[tuple[RankKey, str], Json] = {}

    def add(self, key: RankKey, kind: str, body: Json) -> None:
        """Send a report, and again on each new connection until it is acknowledged."""
        self._last_sequence += 1
        report = {"report": self._last_sequence, "kind": kind, "key": key.name, **body}
        self._unacknowledged.pop((key, kind), None)
        self._unacknowledged[key, kind] = report
        self._send(report)

    def send_again(self) -> None:
        """Send everything unacknowledged, oldest first."""
        for report in self._unacknowledged.values():
            self._send(report)

    def acknowledge(self, key: RankKey, sequence: int) -> None:
        """Drop a report; a newer one about the same stays."""
        for kind in KINDS:
            report = self._unacknowledged.get((key, kind))
            if report is not None and report["report"] == sequence:
                del self._unacknowledged[key, kind]

    def forget(self, key: RankKey) -> None:
        """Drop whatever there is about an attempt."""
        for kind in KINDS:
            self._unacknowledged.pop((key, kind), None)
