"""The replica: a program, the endpoint before it, and what it says of itself to the scheduler. On the event loop."""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from gpufleet.v1 import inference_pb2, sessions_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.host.event_loop import running_loop_in_words
from gpufleet.net.addresses import Address
from gpufleet.net.program_ports import LOOPBACK, choose_port, is_port_taken, with_port
from gpufleet.net.tls import server_context
from gpufleet.security.tickets import connect_key

from .. import wire
from ..core.replicas import Act, Phase, Replica
from ..joining import Joining, run_linked
from .child import Child, Exit, check_program, environment_of
from .contained import ContainerOfProgram
from .readiness import probe
from .splicing import CONNECTIONS_PER_REQUEST_MAX, SpliceServer
from .tied import NOT_RUN

if TYPE_CHECKING:
    from gpufleet.net.certificates import OwnCertificate

STATES = {
    Phase.STARTING: inference_pb2.WORKER_STATE_LOADING,
    Phase.READY: inference_pb2.WORKER_STATE_READY,
    Phase.UNREADY: inference_pb2.WORKER_STATE_LOADING,
    Phase.DRAINING: inference_pb2.WORKER_STATE_DRAINING,
    Phase.FAILED: inference_pb2.WORKER_STATE_FAILED,
}

LAST_BYTES_S_MAX = 1.0
"""How long what a program said before it ended may be on its way to gateways."""

_log = logging.getLogger(__name__)


class Shim:
    """One run of a replica. Made inside the running loop. Raises what is wrong with the flags, and PROGRAM_FAILED.

    `files`: how many files the program may hold open, by its soft limit.
    """

    has_turns = False
    ends: Sequence[sessions_pb2.TurnEnded] = ()
    card = None

    def __init__(self, given: argparse.Namespace, files: int) -> None:
        check_program(given.program[0])
        self._given = given
        self._container = None if given.program_state is None else ContainerOfProgram(given)
        self._joining = joining = Joining(given)
        self.start = secrets.token_hex(16)
        self.changed = asyncio.Event()
        self.replica = Replica()
        self.port = 0
        self.child: Child | None = None
        self._files = files
        self._probing: asyncio.Task[None] | None = None
        self._stirred = asyncio.Event()
        self._tls: ssl.SSLContext | None = None
        self.endpoint = SpliceServer(
            key=connect_key(joining.secret, self.start),
            program=lambda: Address(LOOPBACK, self.port),
            open_max=CONNECTIONS_PER_REQUEST_MAX * given.concurrency,
            changed=self._on_connections,
        )

    async def run(self) -> GpufleetError | None:
        """Run the program until it is stopped, drained or has ended; answers why it failed."""
        joining = self._joining
        try:
            address = await joining.listen(0, self._listen)
            await self.endpoint.start(self._tls)
            _log.info("listening on %s, start %s; event loop %s", address, self.start, running_loop_in_words())
            await run_linked(self._live(), joining.link(self, model=self._given.name, start=self.start))
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_BYTES_S_MAX):
                    await self._connections_ended()
        finally:
            self.endpoint.close()
        _log.info("%d connections, %d refused", self.endpoint.total, self.endpoint.refused)
        if self.replica.phase is not Phase.FAILED:
            return None
        return GpufleetError(
            Reason.PROGRAM_FAILED, self.replica.message, metadata={"exit_code": str(self.replica.status)}
        )

    def _listen(self, port: int, own: OwnCertificate | None) -> int:
        if own is not None:
            from gpufleet.net.certificates import context_of

            self._tls = context_of(own)
        elif self._joining.has_files:
            self._tls = server_context(self._given.tls_cert, self._given.tls_key)
        return self.endpoint.listen(Address(self._given.host, port))

    async def _connections_ended(self) -> None:
        while self.endpoint.open:
            self._stirred.clear()
            await self._stirred.wait()

    # --- the program

    async def _live(self) -> None:
        try:
            while True:
                self._stirred.clear()
                act = self.replica.act(_now_us())
                if act is Act.LEAVE:
                    break
                self._do(act)
                due_us = self.replica.due_us
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if due_us is None else max(0, due_us - _now_us()) / 1e6):
                        await self._stirred.wait()
        finally:
            if self._probing is not None:
                self._probing.cancel()
            if self.child is not None:
                self.child.kill()

    def _do(self, act: Act | None) -> None:
        match act:
            case Act.START:
                self._start()
            case Act.TERMINATE if self.child is not None:
                _log.info("ending the program")
                self.child.terminate()
            case Act.KILL if self.child is not None:
                _log.warning("the program has not ended by SIGTERM")
                self.child.kill()
            case _:
                pass

    def _start(self) -> None:
        given = self._given
        if self._container is not None:
            self.port, argv = given.program_port, tuple(given.program)
        else:
            self.port = choose_port()
            argv = with_port(given.program, given.port_env, self.port)
        _log.info("the program's port is %d", self.port)
        try:
            self.child = Child(argv, environment_of(given.port_env, self.port), self._files, self._on_exit)
        except OSError as problem:
            self._on_exit(Exit(NOT_RUN, f"the program cannot be run: {argv[0]}: {problem.strerror}"))
            return
        if self._probing is not None:
            self._probing.cancel()  # what it is about to hear is of another port
        self._probing = asyncio.create_task(self._probe())

    async def _probe(self) -> None:
        while True:
            forwarded_to = "" if self._container is None else self._container.port
            miss = await probe(LOOPBACK, self.port, self._given.ready, forwarded_to=forwarded_to)
            with self._telling():
                self.replica.probed(miss)
            await asyncio.sleep(self.replica.probe_pause_us / 1e6)

    def _on_exit(self, end: Exit) -> None:
        self.child = None
        if self._container is not None:
            end = self._container.end(end)
        # What runs in a container was told its port when that was made, and is not started again at another one.
        is_taken = self._container is None and is_port_taken(self.port)
        with self._telling():
            self.replica.exited(end.status, end.how, _now_us(), is_port_taken=is_taken)
        if self.replica.status is None:
            _log.warning("%s, and somebody else has port %d: it is started again at another one", end.how, self.port)

    # --- what it is told

    def stop(self) -> None:
        """End the program."""
        _log.info("stopping")
        with self._telling():
            self.replica.stop(_now_us())

    def drain(self) -> None:
        """End the program after the last connection."""
        _log.info("draining: %d connections are open", self.endpoint.open)
        with self._telling():
            self.replica.drain(_now_us())

    def expect(self, session: str, epoch: int, identity: str) -> None:
        """A program has no turns."""
        _log.warning("the scheduler grants session %s a turn here, and a served program has none", session)

    def end(self, session: str, epoch: int, reason: str) -> None:
        """A program has no turns."""
        _log.warning("the scheduler ends the turn of session %s here, and a served program has none", session)

    def acknowledged(self, number: int) -> None:
        """A program has no turns, and no ends."""

    def set_scheduler_time(self, now_s: float) -> None:
        """Nothing here expires."""

    def _on_connections(self, count: int) -> None:
        self.replica.connected(count, _now_us())
        self._stirred.set()

    # --- what it says of itself

    def tell(self) -> None:
        """A report would say something new."""
        self.changed.set()

    def report(self) -> sessions_pb2.ConnectWorkerRequest:
        """What it says of itself to the scheduler."""
        replica = self.replica
        return wire.report(
            STATES[replica.phase],
            (),
            progress=float(replica.phase is Phase.READY),
            message=replica.message,
            load=0.0,
            seats=self._given.concurrency,
            suspects=(),
        )

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Something happens to it: what follows is done, and said if it is news."""
        replica = self.replica
        before = (replica.phase, replica.message)
        yield
        self._stirred.set()
        if (replica.phase, replica.message) != before:
            self.tell()
        if replica.phase is not before[0]:
            _log.info("%s%s", replica.phase.name.lower(), f": {replica.message}" if replica.message else "")


def _now_us() -> int:
    return time.monotonic_ns() // 1_000
