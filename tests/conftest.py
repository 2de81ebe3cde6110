"""Rules for every test: it leaves nothing behind, and CI skips nothing for want of what CI must have."""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest

import gpufleet.host.grpc_forks  # noqa: F401  (some tests fork, in a process in which others have spoken gRPC)
from gpufleet.host.event_loop import ASYNCIO, EVENT_LOOP_VARIABLE, UVLOOP, run
from gpufleet.runtimes.probe import TELEMETRY_VARIABLE
from tests.fork_server import starting
from tests.ignored_signals import reset_ignored_signals
from tests.leaks import MARK, POLL_SECONDS, Allowed, Leaks, Session, Snapshot, kill, settled, since
from tests.rings import choosing
from tests.rings.areas import AREAS, PURE
from tests.rings.cost import Meter, Sums

# With CI=true a skip whose reason names one of these is a failure: a green run must mean that it ran. CI_LACKS names
# those that a distribution does not have.
CI_MUST_HAVE = (
    "postgres",
    "tmpfs",
    "gcc",
    "iproute2",
    "namespace",
    "buf",
    "chromium",
    "prometheus",
    "jq",
    "openai",
    "llama",
    "onnxruntime",
    "rapidocr",
    "silero",
    "wordllama",
    "espeak",
    "etcd",
    "patroni",
)
# How long the tasks of a test that has ended may take to end as well.
TASKS_SETTLE_SECONDS = 30.0
# How long its loop then stays for what gRPC has for it, where gRPC's thread is still there.
GRPC_SETTLE_SECONDS = 5.0

LongLived = Callable[[str], AbstractContextManager[None]]


class OnUvloop:
    """Async tests on the loop that the programs have."""

    def pytest_asyncio_loop_factories(self) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
        """What makes the loops of tests, by name."""
        import uvloop

        return {UVLOOP: uvloop.new_event_loop}


WHY_LINES = 20
"""The end of what is known of a failure: what was expected, and where."""


class NamesFailures:
    """Names each test that fails when it does: of a run that is cut off, the summary never comes."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Say which, where in its course, and why, in a few lines."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and reporter is not None:
            reporter.write_line(f"\nFAILED in its {report.when}: {report.nodeid}", red=True)
            reporter.write_line("\n".join(report.longreprtext.splitlines()[-WHY_LINES:]))


def pytest_configure(config: pytest.Config) -> None:
    """Mark this session's processes, at the first moment there can be any."""
    choosing.load_profile(config.getoption("ring"))
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(NamesFailures(config))
        config.pluginmanager.register(Sums(AREAS, enforces=config.getoption("within_budget")))
    os.environ[MARK] = f"{os.getpid()}-{secrets.token_hex(8)}"
    # Both loops are there: a run says which one its tests and its programs have (make test-uvloop).
    if os.environ.setdefault(EVENT_LOOP_VARIABLE, ASYNCIO) == UVLOOP:
        config.pluginmanager.register(OnUvloop())
        run(asyncio.sleep(0), UVLOOP)  # what the first loop opens stays open for all further ones
    # Else what a fleet does with its users' jobs would follow from who runs the tests. Who tests that says otherwise.
    os.environ["GPUCTL_AGENT_ISOLATION_USERS"] = "shared"
    os.environ.setdefault(TELEMETRY_VARIABLE, "1")  # no test tells anybody, nor keeps a file open for that
    if _runs_tests(config):
        config.pluginmanager.register(Meter())
        reset_ignored_signals()
        starting.install()


def _runs_tests(config: pytest.Config) -> bool:
    """Whether this is not the process that hands tests to others: those are to come with what it came with."""
    return hasattr(config, "workerinput") or config.getoption("dist", "no") == "no"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options by which the Makefile chooses a ring of tests."""
    choosing.add_options(parser)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The tests of the ring, long files first; the others stay in their order."""
    choosing.select(config, items)
    choosing.order(items)


def pytest_collection_finish() -> None:
    """What was collected stays until the end: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let a test that is marked `by_exec` start its programs as users do, without the fork server."""
    with starting.without_hook() if item.get_closest_marker("by_exec") else nullcontext():
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def _session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """This session's identity; made first and ended last, it sees what all other fixtures left."""
    session = Session(os.environ[MARK], tmp_path_factory.getbasetemp())
    before = Snapshot.take()
    yield session
    starting.servers.close()
    if processes := settled(before, session, Allowed()).processes:
        kill(processes)
        pytest.fail("the session's fixtures left behind:\n" + str(Leaks(processes=processes)), pytrace=False)


@pytest.fixture(scope="session")
def _allowed() -> Allowed:
    return Allowed()


@pytest.fixture(scope="session")
def long_lived(_session: Session, _allowed: Allowed) -> LongLived:
    """Registers what starts inside `with long_lived("name"):` as outliving single tests.

    For fixtures of session or module scope that may first be asked for while a test already runs
    (`request.getfixturevalue`), or that open more later. Their own end must still end it: what is left of
    their processes when the session ends fails the session.
    """

    @contextmanager
    def register(name: str) -> Iterator[None]:
        before = Snapshot.take()
        yield
        started = since(before, _session, _allowed)
        assert started, f"{name} started nothing that could outlive a test"
        _allowed.add(started)

    return register


@pytest.fixture(autouse=True)
def _leaves_nothing(request: pytest.FixtureRequest, _session: Session, _allowed: Allowed) -> Iterator[None]:
    """Fail a test that leaves threads, file descriptors or processes; the processes are then killed.

    To look through all processes takes longer than a pure test, which starts none.
    """
    before = Snapshot.take(has_processes=not PURE.has(request.node.nodeid))
    yield
    if leaks := settled(before, _session, _allowed):
        kill(leaks.processes)
        pytest.fail(f"the test left behind:\n{leaks}", pytrace=False)


@pytest.fixture(autouse=True)
def _leaves_no_tasks(request: pytest.FixtureRequest, _leaves_nothing: None) -> None:
    """For an async test, set up the check below before all its other fixtures, so that it ends after them."""
    if request.node.get_closest_marker("asyncio"):
        request.getfixturevalue("_tasks_at_the_end")


@pytest.fixture
async def _tasks_at_the_end(_allowed: Allowed) -> AsyncIterator[None]:
    before = Snapshot.take()
    yield
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, others = await asyncio.wait(others, timeout=TASKS_SETTLE_SECONDS)
    if others:
        names = "\n".join(f"  task {task.get_name()!r}: {task.get_coro()}" for task in others)
        pytest.fail(f"the test left behind:\n{names}", pytrace=False)
    # gRPC hands the end of an operation to its loop. One that comes once the loop is closed is handed to nobody, and
    # keeps the call, its connection and gRPC's thread for good; a thread that is still here is for `settled` to tell.
    deadline = time.monotonic() + GRPC_SETTLE_SECONDS
    while _grpc_threads() - before.threads - _allowed.threads and time.monotonic() < deadline:
        gc.collect()
        await asyncio.sleep(POLL_SECONDS)


def _grpc_threads() -> set[threading.Thread]:
    """Of grpc.aio, one for a process, as long as a channel or a server is open in it."""
    return {thread for thread in threading.enumerate() if thread.name.endswith("(_poll_wrapper)")}


def _fail_if_ci_must_have(report: pytest.TestReport | pytest.CollectReport) -> None:
    if os.environ.get("CI") != "true" or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if any(word in reason.lower() for word in CI_MUST_HAVE if word not in os.environ.get("CI_LACKS", "").split()):
        report.outcome = "failed"
        report.longrepr = f"CI must have what this test needs: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_if_ci_must_have(report)
    # What a test printed goes from process to process, and only valid Unicode can.
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_ci_must_have(report)
    return report
