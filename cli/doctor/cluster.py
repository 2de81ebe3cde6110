"""What the scheduler's answers say: from messages to findings, without asking anything.

`doctor --nodes` compares what the nodes have installed, side by side, and says which one is odd.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gpufleet.v1 import node_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.finding import Finding, failed, ok, warning
from gpufleet.text.units import counted, format_duration, format_size

from ..admin.version import skew_in_words
from ..render import words
from ..render.nodes import devices_in_words

NAMES_SHOWN_MAX = 5
NONE = "none"


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that should be the same everywhere, and how to make it so on the odd node."""

    what: str
    of: Callable[[node_pb2.Node], str]
    fix: str
    concerns: Callable[[node_pb2.Node], bool] = lambda _: True


def has_real_gpu(node: node_pb2.Node) -> bool:
    """Whether a driver has anything to do there."""
    return any(not each.device.is_virtual for each in node.devices)


FACTS = (
    Fact("gpufleet", lambda node: node.info.agent_version, "pip install gpufleet=={most}, and start the agent again"),
    Fact("Python", lambda node: node.info.python_version, "Make the agent's environment with Python {most}"),
    Fact("torch", lambda node: node.info.torch_version, "pip install torch=={most}"),
    Fact("CUDA", lambda node: node.info.cuda_runtime_version, "Install the torch that the others have: it brings CUDA"),
    Fact(
        "driver",
        lambda node: "/".join(filter(None, (node.info.driver_version, node.info.cuda_version))),
        "Install the driver that the others have",
        has_real_gpu,
    ),
)
"""What is compared. Python, torch and CUDA are those beside the agent; a job's own environment may hold others. The
driver's version comes with the CUDA that it supports."""


def compare_nodes(nodes: Sequence[node_pb2.Node]) -> Iterator[Finding]:
    """A finding for each fact: the same everywhere, or who is odd."""
    heard = [node for node in nodes if node.state != node_pb2.NODE_STATE_LOST]
    for fact in FACTS:
        concerned = [node for node in heard if fact.concerns(node)]
        if concerned:
            yield _compared(fact, concerned)


def _compared(fact: Fact, nodes: Sequence[node_pb2.Node]) -> Finding:
    versions = {node.name: fact.of(node) or NONE for node in nodes}
    counts = Counter(versions.values())
    if len(counts) == 1:
        (version,) = counts
        if version == NONE:
            return ok(fact.what, "on no node")
        where = "on the only node" if len(nodes) == 1 else f"on all {len(nodes)} nodes"
        return ok(fact.what, f"{version} {where}")
    # Of two that are equally common the newer is taken for the right one: what is odd is what was left behind.
    most = max(counts, key=lambda version: (counts[version], version != NONE, _order(version)))
    odd = sorted(name for name, version in versions.items() if version != most)
    told = [f"{name} has {versions[name]}" for name in odd[:NAMES_SHOWN_MAX]]
    told += [f"and {counted(len(odd) - len(told), 'more node')} differ"] if len(odd) > len(told) else []
    sentence = f"{', '.join(told)}; {counted(counts[most], 'node')} {'has' if counts[most] == 1 else 'have'} {most}"
    where = f"On {', '.join(odd[:NAMES_SHOWN_MAX])}: "
    return warning(fact.what, sentence, where + fact.fix.format(most=most))


def _order(version: str) -> list[tuple[int, str]]:
    """Versions as people order them: 2.10 is newer than 2.9."""
    parts = version.replace("+", ".").replace("/", ".").split(".")
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


CLOCK_SKEW_MAX = timedelta(seconds=5)
COMPARED_WITHIN = timedelta(seconds=2)
"""Clocks are compared by a call that takes no longer."""
FREE_BYTES_MIN = 5 * 10**9
FREE_BYTES_FAILED = 10**9
OPEN_FILES_MIN = 1024
"""What a program needs at least; many systems give it no more."""

OPEN_FILES_PER_NODE = 4
OPEN_FILES_SPARE = 512
"""What the scheduler needs: for each node its streams and the output that comes over them, and the rest for people."""


def judge_refusal(problem: GpufleetError) -> Finding:
    """A call that the scheduler did not answer: whose fault it is decides the line."""
    about_token = problem.reason in (
        Reason.TOKEN_MISSING,
        Reason.TOKEN_INVALID,
        Reason.TOKEN_REVOKED,
        Reason.PERMISSION_DENIED,
        Reason.TOKEN_FILE_EXPOSED,
        Reason.TOKEN_FILE_INVALID,
        Reason.FILE_NOT_FOUND,
    )
    return failed("token" if about_token else "answer", problem.message, problem.next_step)


def judge_server(
    server: scheduler_pb2.GetServerInfoResponse,
    own_version: str,
    asked_at: datetime,
    answered_at: datetime,
    token_origin: str,
) -> Iterator[Finding]:
    """Token, versions, clocks, store and disk."""
    yield ok("token", f"{server.user} ({server.role.removeprefix('ROLE_').lower()}), from {token_origin}")
    skew = skew_in_words(own_version, server.version, "the scheduler")
    if skew:
        yield warning("version", skew, f"pip install gpufleet=={server.version}")
    else:
        loop = f"; the scheduler waits with {server.event_loop}" if server.event_loop else ""
        yield ok("version", f"{server.version} on both sides{loop}")
    yield judge_clock(server, asked_at, answered_at)
    if server.store_is_healthy:
        yield ok("store", server.store_kind)
    else:
        yield failed(
            "store", f"{server.store_kind} takes no writes: {server.store_error}", "Free its disk, or start it."
        )
    if server.HasField("store_gap"):
        yield judge_gap(server.store_gap, server.server_time.ToDatetime(UTC))
        yield from judge_told(server.store_gap)
    yield from judge_refused(server)
    yield from judge_leading(server.schedulers)
    if server.file_store_error:
        fix = "Jobs whose files are there wait; see: gpuctl doctor --files"
        yield failed("file store", server.file_store_error, fix)
    yield judge_disk(server.output_free_bytes)
    if server.open_files_max:
        yield judge_open_files(server)


SILENCE_MAX = timedelta(seconds=10)
"""A scheduler that has not beaten for longer hangs, or is gone."""


def judge_leading(schedulers: Sequence[scheduler_pb2.SchedulerRun]) -> Iterator[Finding]:
    """Who leads, and who stands by; nothing where the store cannot be shared."""
    for number, run in enumerate(schedulers):
        silence = run.silence.ToTimedelta()
        where = f"{run.host} ({run.address})"
        if number == 0:
            alone = "" if len(schedulers) > 1 else "; nobody stands by"
            yield ok("leader", f"{where} in term {run.term}{alone}")
        elif silence > SILENCE_MAX:
            sentence = (
                f"{where} has said nothing for {format_duration(timedelta(seconds=silence // timedelta(seconds=1)))}"
            )
            yield warning(
                "standby", sentence, f"Start it again there: gpuctl scheduler --standby (its log: {run.host})"
            )
        elif run.problem:
            yield warning("standby", f"{where}: {run.problem}", "Mend that there; docs/high-availability.md says how.")
        else:
            behind = f"{counted(run.records_behind, 'record')} behind" if run.records_behind else "warm"
            yield ok("standby", f"{where} stands by, {behind}")


def judge_gap(gap: scheduler_pb2.StoreGap, now: datetime) -> Finding:
    """What jobs wait for since the store was put back."""
    since = f"a store that lacks history was accepted {words.since(gap.accept_time, now)} ago"
    jobs = f"its jobs below {gap.jobs_below}"
    if gap.is_over or gap.is_released:
        return ok("gap", f"{since}: {jobs} wait for nothing more of it")
    fix = "See who waits: gpuctl queue. To start one all the same: gpuctl release JOB; all: gpuctl release --restored"
    nodes = list(gap.awaited_nodes)
    if nodes:
        more = len(nodes) - NAMES_SHOWN_MAX
        named = ", ".join(nodes[:NAMES_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
        away = f"Start the agents there; of one that is gone for good: gpuctl nodes forget {nodes[0]}. {fix}"
        return warning("gap", f"{since}: {jobs} wait for what {named} may still run", away)
    left = -words.span_between(gap.wait_until, now)
    if left > timedelta(0):
        rest = format_duration(max(left, timedelta(seconds=1)))
        return warning("gap", f"{since}: {jobs} wait {rest} more for what nodes that joined meanwhile may run", fix)
    return ok("gap", f"{since}: of {jobs} only those with --no-requeue or a longer fence wait")


def judge_refused(server: scheduler_pb2.GetServerInfoResponse) -> Iterator[Finding]:
    """Nodes that may not come back, since they have heard of more than the store has."""
    now = server.server_time.ToDatetime(UTC)
    for each in server.refused_nodes[:NAMES_SHOWN_MAX]:
        sentence = f"node {each.node} was refused {words.since(each.refuse_time, now)} ago: {each.message}"
        yield failed("refused", f"{sentence} ({each.reason})", REFUSED_FIX)
    more = len(server.refused_nodes) - NAMES_SHOWN_MAX
    if more > 0:
        yield failed("refused", f"and {counted(more, 'more node')}", REFUSED_FIX)


REFUSED_FIX = (
    "The database is older than what its nodes have heard. Put the newest one back; to go on without what it lacks, "
    "start the scheduler once with --accept-restored"
)


def judge_told(gap: scheduler_pb2.StoreGap) -> Iterator[Finding]:
    """Jobs of which nodes told, since the store was put back, what it lacks."""
    if gap.found_job_count:
        which = _ids_in_words(gap.found_job_ids, gap.found_job_count)
        yield ok("found", f"the store lacks {which}, of which nodes told: gpuctl job {gap.found_job_ids[0]}")
    if gap.given_up_job_count:
        which = _ids_in_words(gap.given_up_job_ids, gap.given_up_job_count)
        yield warning(
            "done twice",
            f"nodes told of attempts of {which} that do not count, as the store lacks them: it may be done twice",
            f"See why: gpuctl story {gap.given_up_job_ids[0]}",
        )


def _ids_in_words(ids: Sequence[int], count: int) -> str:
    more = count - len(ids[:NAMES_SHOWN_MAX])
    named = ", ".join(str(each) for each in ids[:NAMES_SHOWN_MAX])
    return f"{'job' if count == 1 else 'jobs'} {named}" + (f" and {more:,} more" if more else "")


def judge_clock(server: scheduler_pb2.GetServerInfoResponse, asked_at: datetime, answered_at: datetime) -> Finding:
    """Whether both clocks agree. A slow call does not say: the answer was made somewhere between asking and getting."""
    took = answered_at - asked_at
    ahead = -words.span_between(server.server_time, asked_at + took / 2)
    fix = "On both machines: sudo timedatectl set-ntp true"
    if took <= COMPARED_WITHIN and abs(ahead) > CLOCK_SKEW_MAX:
        side = "ahead of" if ahead > timedelta(0) else "behind"
        return warning("clock", f"the scheduler's clock is {format_duration(abs(ahead))} {side} this one", fix)
    if server.clock_stepped:
        return warning("clock", "the scheduler's clock was set by more than 5 s while it ran", fix)
    if took > COMPARED_WITHIN:
        return ok("clock", f"not compared: the scheduler took {format_duration(took)} to answer")
    return ok("clock", "the clocks agree")


def judge_disk(free_bytes: int) -> Finding:
    """Whether output still finds room at the scheduler."""
    sentence = f"{format_size(free_bytes)} are free for output at the scheduler"
    fix = "Free that disk, or keep less: output.retention in scheduler.toml"
    if free_bytes < FREE_BYTES_FAILED:
        return failed("disk", sentence, fix)
    return warning("disk", sentence, fix) if free_bytes < FREE_BYTES_MIN else ok("disk", sentence)


def judge_open_files(server: scheduler_pb2.GetServerInfoResponse) -> Finding:
    """Whether the scheduler may open as many files as its nodes take."""
    needed = max(OPEN_FILES_MIN, OPEN_FILES_SPARE + OPEN_FILES_PER_NODE * server.node_count)
    if server.open_files_max < needed:
        sentence = f"the scheduler may open {server.open_files_max:,} files, and should be able to open {needed:,}"
        return warning("files", sentence, f"Where it is started: {open_files_fix(needed)}")
    return ok("files", f"the scheduler may open {server.open_files_max:,}")


def open_files_fix(needed: int) -> str:
    """How to let a program open more files."""
    return f"ulimit -n {needed} before it, or LimitNOFILE={needed} in its systemd unit"


def judge_nodes(nodes: Sequence[node_pb2.Node], server_version: str, now: datetime) -> Iterator[Finding]:
    """A line for each node."""
    if not nodes:
        yield failed(
            "nodes", "no agent has registered yet", "On each machine with GPUs: gpuctl agent --scheduler HOST:PORT"
        )
    for node in nodes:
        yield judge_node(node, server_version, now)
    yield from judge_accounts(nodes)
    yield from judge_uids(nodes)
    yield from judge_containers(nodes)


def judge_containers(nodes: Sequence[node_pb2.Node]) -> Iterator[Finding]:
    """Which nodes run jobs in containers, a line for all that do alike; none where no node has an engine."""
    alike: dict[tuple[str, str, str, str], list[str]] = {}
    for node in nodes:
        each = node.info.containers
        lacks_gpus = bool(each.engine) and not each.gpus_by and has_real_gpu(node)
        alike.setdefault((each.engine, each.problem, each.fix, "no" if lacks_gpus else each.gpus_by), []).append(
            node.name
        )
    if not any(engine for engine, _, _, _ in alike):
        return
    for (engine, problem, fix, gpus_by), names in alike.items():
        shown = ", ".join(names[:NODES_SHOWN]) + (
            f" and {len(names) - NODES_SHOWN} more" if len(names) > NODES_SHOWN else ""
        )
        if engine and gpus_by == "no":
            yield warning("containers", f"on {shown}: {engine}, which gives them no GPUs", TOOLKIT)
        elif engine and problem:
            yield warning("containers", f"on {shown}: {engine} is away: {problem}", fix)
        elif engine:
            yield ok("containers", f"on {shown}: {engine}")
        else:
            why = problem or "its agent knows nothing of them"
            yield ok("containers", f"not on {shown}: {why}{f'. {fix}' if fix else ''}")


TOOLKIT = (
    "Install the NVIDIA container toolkit there, then: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml, and "
    "restart the agent"
)


def judge_accounts(nodes: Sequence[node_pb2.Node]) -> Iterator[Finding]:
    """As whom jobs run, a line for all nodes that do alike."""
    alike: dict[tuple[int, str, bool, str, str], list[str]] = {}
    for node in nodes:
        each = node.info.job_accounts
        key = (each.runs_as, each.owner, each.is_from_before, each.account, _keeping(each))
        alike.setdefault(key, []).append(node.name)
    for (runs_as, owner, is_from_before, account, keeping), names in alike.items():
        shown = ", ".join(names[:NODES_SHOWN]) + (
            f" and {len(names) - NODES_SHOWN} more" if len(names) > NODES_SHOWN else ""
        )
        one = len(names) == 1
        what = f"on {shown} {accounts_in_words(runs_as, owner, account)}"
        if runs_as in (node_pb2.RUNS_AS_RANGE, node_pb2.RUNS_AS_ACCOUNTS, node_pb2.RUNS_AS_OWNER):
            yield ok("accounts", f"{what}{keeping}")
            continue
        fix = "Start its agent as root" if one else "Start their agents as root"
        fix += " with --isolation range to keep users apart, or with --owner USER to take that user's jobs alone"
        if is_from_before or not runs_as:
            fix += "; where sharing is meant, with --shared-account"
        yield warning("accounts", f"{what}. {SHARED_MEANS}{keeping}", fix)


def judge_uids(nodes: Sequence[node_pb2.Node]) -> Iterator[Finding]:
    """Which nodes give users other uids than their settings say."""
    for node in nodes:
        each = node.info.job_accounts
        if each.uids_note:
            yield ok("uids", f"on {node.name} users have uids from {each.uid_first} on: {each.uids_note}")


def _keeping(accounts: node_pb2.JobAccounts) -> str:
    """Within what jobs are kept, and by what nothing outlives its own, as the rest of a sentence."""
    kept = f"; each within its {' and '.join(accounts.limits)}" if accounts.limits else ""
    note = f"; {accounts.limits_note}" if accounts.limits_note else ""
    ends = f"; nothing outlives its job, by {accounts.ends_all_by}" if accounts.ends_all_by else ""
    return f"{kept}{note}{ends}"


def accounts_in_words(runs_as: int, owner: str, account: str) -> str:
    """As whom jobs run, as the rest of "on n1 …"."""
    own = account or "their agent's account"
    match runs_as:
        case node_pb2.RUNS_AS_RANGE:
            return "each user's jobs run as a uid of their own, kept apart"
        case node_pb2.RUNS_AS_ACCOUNTS:
            return "each user's jobs run as the account of that name, kept apart"
        case node_pb2.RUNS_AS_OWNER:
            return f"jobs of {owner or 'nobody'} alone run, as {own}"
        case _:
            return f"jobs of all users run as {own}"


SHARED_MEANS = "Each of them can read, change and end all that this account can: others' jobs, files and secrets"
NODES_SHOWN = 8


def judge_node(node: node_pb2.Node, server_version: str, now: datetime) -> Finding:
    """Whether the node can be given work, and what is wrong with it or its devices."""
    what = f"node {node.name}"
    state = words.node_state(node.state).text
    if node.HasField("refusal"):
        when = words.since(node.refusal.refuse_time, now)
        return failed(what, f"{state}, refused {when} ago: {node.refusal.message}", REFUSED_FIX)
    if node.state in (node_pb2.NODE_STATE_LOST, node_pb2.NODE_STATE_SUSPECT):
        heard = f", heard {words.since(node.last_heard_time, now)} ago" if node.HasField("last_heard_time") else ""
        fix = f"On it: is the agent running? See: gpuctl logs --program agent:{node.name}"
        forget = f". If it will not come back: gpuctl nodes forget {node.name}"
        if node.state == node_pb2.NODE_STATE_LOST:
            return failed(what, f"{state}{heard}", fix + forget)
        return warning(what, f"{state}{heard}", fix)
    unhealthy = [each for each in node.devices if not each.device.is_healthy]
    if unhealthy:
        worst = unhealthy[0].device
        sentence = f"GPU {worst.index} is unhealthy: {worst.unhealthy_reason or 'no reason given'}"
        return failed(what, sentence, f"When it is mended: gpuctl resume {node.name}")
    skew = skew_in_words(server_version, node.info.agent_version, "its agent")
    if skew:
        sentence = f"its agent has version {node.info.agent_version}, the scheduler {server_version}"
        return warning(what, sentence, f"On it: pip install gpufleet=={server_version}, then start the agent again")
    if node.is_draining:
        return warning(what, f"draining: {node.drain_reason or 'no reason given'}", f"gpuctl resume {node.name}")
    if node.info.devices_note and (not node.devices or has_real_gpu(node)):
        fix = node.info.devices_fix or "install the driver; nvidia-smi must list the GPUs"
        return warning(what, node.info.devices_note, f"On it: {fix}")
    if node.HasField("spool_free_bytes") and node.spool_free_bytes < FREE_BYTES_FAILED:
        sentence = f"{format_size(node.spool_free_bytes)} are free where its jobs' output waits"
        return warning(what, sentence, "Free that disk: a job whose output finds no room is held up")
    if 0 < node.info.open_files_max < OPEN_FILES_MIN:
        sentence = f"its agent and each job may open {node.info.open_files_max:,} files"
        return warning(what, sentence, f"On it, where the agent is started: {open_files_fix(OPEN_FILES_MIN)}")
    return ok(what, f"{state}: {devices_in_words(node)}")
