"""What an agent may ask of a keeper, as JSON objects `{"id": n, "do": name, ...}`.

The answer repeats the id as `re`. What is refused is answered `{"refused": {"reason", "detail"}}` and has
changed nothing. Without being asked the keeper sends reports (`reports.py`) and, before it hangs up,
`{"bye": why}`.
"""

import binascii
import os
import traceback
from collections.abc import Callable
from typing import Any

from gpufleet.jobs.runs import SIGNAL_MAX, RankKey, StopCause

from ..core.launch import TIME_US_MAX, NotRun, Refusal, RefusalReason
from ..core.outcome import AttemptView, Offsets
from ..core.typed import CHUNK_BYTES_MAX, COLUMNS_MAX, ROWS_MAX, InputPiece
from .input import Input
from .keeper import Keeper
from .linux import boottime_us
from .supervised import Supervised
from .values import Json, launch_from, offsets_from, to_json

INVENTORY_PAGE = 100
"""Even with the longest notes so many fit in one message."""

WRITER_CHARS_MAX = 128
"""Names of sessions are made by gpuctl; what is longer is a mistake."""

_DONE: Json = {}


class RequestRefused(Exception):
    """What is asked is refused, and nothing has changed."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal


class Requests:
    """Answers requests; None is an answer that comes later. `send` speaks to the agent that is there then."""

    def __init__(self, keeper: Keeper, build: str, send: Callable[[Json], None]) -> None:
        self._keeper = keeper
        self._build = build
        self._send = send
        self._agents = 0
        self._handlers: dict[str, Callable[[Json], Json | None]] = {
            "launch": self._launch,
            "check": self._check,
            "signal": self._signal,
            "stop": self._stop,
            "set_time_limit": self._set_time_limit,
            "forget": self._forget,
            "inventory": self._inventory,
            "set_fence": self._set_fence,
            "wait_for_output": self._wait_for_output,
            "output_synced": self._output_synced,
            "begin_input": self._begin_input,
            "input": self._input,
            "resize": self._resize,
            "acknowledge": self._acknowledge,
            "retire": self._retire,
            "shutdown": self._shutdown,
        }

    def hello(self) -> Json:
        """Say who this keeper is, to an agent that has just come."""
        self._agents += 1
        return {
            "keeper_id": self._keeper.keeper_id,
            "build": self._build,
            "pid": os.getpid(),
            "boot_id": self._keeper.boot_id,
            "is_retired": self._keeper.is_retired,
        }

    def enter(self, request: Json, channel_fd: int) -> Json | None:
        """Hand a connection to the supervisor of an attempt, for a command that is let in; else say why not."""
        try:
            refusal = self._find(request).enter(channel_fd)
        except RequestRefused as no:
            refusal = no.refusal
        except (KeyError, TypeError, ValueError) as error:
            return _bad(f"enter: {type(error).__name__}: {error}"[:1000])
        return None if refusal is None else _refused(refusal)

    def answer(self, request: Json) -> Json | None:
        """Do what is asked."""
        handler = self._handlers.get(str(request.get("do")))
        if handler is None:
            return _bad(f"do {str(request.get('do'))[:80]!r} is not known")
        try:
            return handler(request)
        except RequestRefused as no:
            return _refused(no.refusal)
        except (KeyError, TypeError, ValueError) as error:
            return _bad(f"{request['do']}: {type(error).__name__}: {error}"[:1000])
        except Exception as error:
            traceback.print_exc()
            detail = f"{request['do']}: {type(error).__name__}: {error}"[:1000]
            return _refused(Refusal(RefusalReason.INTERNAL, f"{detail}; keeper.log in the state directory has more"))

    def _launch(self, request: Json) -> Json:
        launch = launch_from(request["launch"])
        answer = self._keeper.launch(launch)
        return _refused(answer) if isinstance(answer, Refusal) else to_json(answer)

    def _check(self, request: Json) -> Json:
        """Answered like a launch, and nothing is started."""
        match self._keeper.check(launch_from(request["launch"])):
            case AttemptView() as known:
                return {"attempt": to_json(known)}
            case Refusal() as refusal:
                return _refused(refusal)
            case NotRun() as not_run:
                return {"not_run": to_json(not_run)}
            case None:
                return _DONE

    def _signal(self, request: Json) -> Json:
        number = _number(request["signal"], "signal", 1, SIGNAL_MAX)
        attempt = self._find(request)
        if not attempt.signal(number):
            raise _not_running(attempt)
        return _DONE

    def _stop(self, request: Json) -> Json:
        """Idempotent: what has ended, or is ending, stays so."""
        cause = StopCause(request["cause"])
        self._find(request).stop(cause, _number_or_none(request.get("grace_us"), "grace_us", 0))
        return _DONE

    def _set_time_limit(self, request: Json) -> Json:
        """Idempotent: what has ended, or is being stopped, stays so."""
        limit_us = _number_or_none(request["time_limit_us"], "time_limit_us", 1, TIME_US_MAX)
        self._find(request).set_time_limit(limit_us)
        return _DONE

    def _forget(self, request: Json) -> Json:
        refusal = self._keeper.forget(RankKey.parse(request["key"]))
        return _DONE if refusal is None else _refused(refusal)

    def _inventory(self, request: Json) -> Json:
        after = request.get("after")
        views, has_more = self._keeper.views(None if after is None else RankKey.parse(after), INVENTORY_PAGE)
        return {"attempts": to_json(views), "has_more": has_more}

    def _set_fence(self, request: Json) -> Json:
        sent_us = _number(request["heartbeat_sent_us"], "heartbeat_sent_us", 0)
        if sent_us > boottime_us():
            return _bad("heartbeat_sent_us lies in the future")
        self._keeper.heartbeat_acknowledged(sent_us)
        return _DONE

    def _wait_for_output(self, request: Json) -> Json | None:
        """Answered when there is more than the agent has, or the attempt has ended, or another one waits."""
        attempt = self._find(request)
        answer = self._later(request)

        def tell(ends: Offsets, is_final: bool) -> None:
            answer({"ends": to_json(ends), "is_final": is_final})

        attempt.output.wait(offsets_from(request["have"]), tell)
        return None

    def _output_synced(self, request: Json) -> Json:
        synced = offsets_from(request["synced"])
        self._keeper.output_synced(self._find(request), synced)
        return _DONE

    def _begin_input(self, request: Json) -> Json:
        """Another session types; what an earlier one still has under way is refused from now on."""
        found = self._find_input(request)
        is_continued = found.begin(_writer(request))
        return {"typed": to_json(found.typed), "is_continued": is_continued}

    def _input(self, request: Json) -> Json | None:
        """Answered when all of the piece has found room, or when another one comes."""
        found = self._find_input(request)
        if not found.is_writer(_writer(request)):
            raise RequestRefused(Refusal(RefusalReason.NOT_THE_WRITER, "another session types now"))
        answer = self._later(request)
        data = binascii.a2b_base64(request["data"], strict_mode=True)
        if len(data) > CHUNK_BYTES_MAX:
            return _bad(f"data has {len(data)} bytes, at most {CHUNK_BYTES_MAX} are taken")
        piece = InputPiece(_number(request["offset"], "offset", 0), data, bool(request.get("is_end")))
        found.take(piece, lambda typed: answer({"typed": to_json(typed)}))
        return None

    def _resize(self, request: Json) -> Json:
        found = self._find_input(request)
        columns = _number(request["columns"], "columns", 1, COLUMNS_MAX)
        found.resize(columns, _number(request["rows"], "rows", 1, ROWS_MAX))
        return _DONE

    def _later(self, request: Json) -> Callable[[Json], None]:
        """Answer a request when it is time; an agent that has come since numbers its own requests."""
        number, agent = int(request["id"]), self._agents

        def answer(body: Json) -> None:
            if agent == self._agents:
                self._send({"re": number, **body})

        return answer

    def _find_input(self, request: Json) -> Input:
        attempt = self._find(request)
        if attempt.end is not None:
            raise _not_running(attempt)
        if attempt.input is None:
            raise RequestRefused(Refusal(RefusalReason.NO_INPUT, f"{attempt.key} was launched without an input"))
        return attempt.input

    def _acknowledge(self, request: Json) -> Json:
        self._keeper.reports.acknowledge(RankKey.parse(request["key"]), int(request["report"]))
        return _DONE

    def _retire(self, request: Json) -> Json:
        self._keeper.retire()
        return _DONE

    def _shutdown(self, request: Json) -> Json:
        running = self._keeper.running_count()
        if running and not request.get("kill"):
            detail = f"{running} attempts run: stop them, or say kill"
            return _refused(Refusal(RefusalReason.ATTEMPTS_RUNNING, detail))
        self._keeper.stop_all(_number_or_none(request.get("grace_us"), "grace_us", 0))
        return {"stopping": running}

    def _find(self, request: Json) -> Supervised:
        key = RankKey.parse(request["key"])
        attempt = self._keeper.attempt(key)
        if attempt is None:
            raise RequestRefused(Refusal(RefusalReason.UNKNOWN_ATTEMPT, f"{key} is not known to this keeper"))
        return attempt


def _not_running(attempt: Supervised) -> RequestRefused:
    return RequestRefused(Refusal(RefusalReason.NOT_RUNNING, f"{attempt.key} does not run any more"))


def _writer(request: Json) -> str:
    writer = request["writer"]
    if not isinstance(writer, str) or not 1 <= len(writer) <= WRITER_CHARS_MAX:
        raise ValueError(f"writer must be 1 to {WRITER_CHARS_MAX} characters")
    return writer


def _number(value: Any, name: str, least: int, most: int = 2**63 - 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name} {value!r} is not a whole number within {least} and {most}")
    return value


def _number_or_none(value: Any, name: str, least: int, most: int = 2**63 - 1) -> int | None:
    return None if value is None else _number(value, name, least, most)


def _bad(detail: str) -> Json:
    return _refused(Refusal(RefusalReason.BAD_REQUEST, detail))


def _refused(refusal: Refusal) -> Json:
    return {"refused": to_json(refusal)}
