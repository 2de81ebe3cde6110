"""Runs golden transcripts: a command a line, and indented under it what the scheduler decided.

    submit alice gpus=2 time-limit=1h      # job 1
      JobQueued 1   AttemptPlaced 1/1 on n1:0,1
      -> LaunchAttempt 1/1 n1

Records stand on one line, each command (`->`) on its own; `=` is what the asker is answered, `!` a refusal, `@` the
time since the beginning where time alone brought something. `COMMANDS` lists the commands; `key=value` are arguments,
a bare word that is no position is a switch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from gpufleet.text.units import parse_size
from scheduler.core.story import sentence, span_text, tell, tell_command
from scheduler.policy.capacity import capacity
from scheduler.policy.explain import explain
from scheduler.policy.order.queue import queue_order
from scheduler.policy.promises import Promises
from scheduler.state.access import Role, Token
from scheduler.state.attempts import OutputStream, RefusalKind
from scheduler.state.events import (
    BandRequested,
    CancelRequested,
    CheckpointStored,
    DrainRequested,
    EntryRequested,
    Event,
    ForgetRequested,
    HoldRequested,
    JobsSubmitted,
    NodeBeat,
    NoticeFailed,
    OutputDamaged,
    OutputSynced,
    Preparation,
    RankExited,
    RankReady,
    RankRefused,
    RankStarted,
    ReadingResumed,
    RequeueRequested,
    ResultsReported,
    RevokeRequested,
    SharedRootChecked,
    SignalRequested,
    SpoolFilled,
    TokenRequested,
    UpdateRequested,
    WantedJob,
)
from scheduler.state.groups.changes import GroupRemovalRequested, GroupRenameRequested, GroupSetRequested
from scheduler.state.groups.group import GroupName
from scheduler.state.ids import DeviceUuid, JobId, NodeName, RankKey, TokenId, UserName
from scheduler.state.indexes.equal_jobs import EqualJobs
from scheduler.state.kept import KeptCopy
from scheduler.state.limits import GpuRouting, Limits, NodeOrder, ScoreWeights, WarningLimits
from scheduler.state.nodes import DeviceProcess
from scheduler.state.records import is_shared, job_of
from scheduler.state.replies import Refused, Submitted
from scheduler.state.results import ResultsOutcome
from scheduler.state.specs import Band, InputFolder
from scheduler.state.units import Instant, Span
from scheduler.state.warnings import MemoryPeak
from tests.core.fleet import FakeStore, Fleet, Turn
from tests.core.transcript_text import GAP, clock_text, reply_lines, state_text, wrapped
from tests.core.words import (
    Words,
    ends_of,
    exit_of,
    items_of,
    job_ids,
    key_of,
    seen_of,
    span_of,
    spec_of,
    split_once,
    use_of,
)


class Transcript:
    """One run of a golden file."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.fleet = Fleet(limits)
        self.promises = Promises()
        self.copied: FakeStore | None = None

    def answer(self, line: str) -> list[str]:
        """Run one command and tell what followed."""
        words = Words.of(line)
        command = COMMANDS[words.next()]
        lines = [each for told in command(self, words) for each in wrapped(told)]
        words.assert_empty()
        return lines

    # --- telling

    def told(self, turns: Turn | Iterable[Turn], *, timed: bool = False) -> list[str]:
        lines: list[str] = []
        for turn in [turns] if isinstance(turns, Turn) else turns:
            records = GAP.join(tell(record) for record in turn.records)
            said = [*reply_lines(turn.reply), *([records] if records else []), *map(tell_command, turn.commands)]
            if said and timed:
                lines.append(f"@{clock_text(turn.at)}")
            lines.extend(said)
        return lines

    def take_up(self, event: Event) -> list[str]:
        return self.told(self.fleet.take_up(event))

    # --- nodes

    def node(self, words: Words) -> list[str]:
        """A machine joins: its agent registers, opens a stream with an empty inventory, and beats."""
        name = words.next()
        node = self.fleet.add_node(
            name,
            gpus=words.integer("gpus", 0),
            memory_bytes=words.memory("memory", parse_size("80GB")),
            cpus=words.integer("cpus", 64),
            ram_bytes=words.memory("ram", parse_size("512GB")),
            model=words.value("model", "NVIDIA A100"),
            is_virtual=words.switch("virtual"),
            labels=tuple(split_once(label, ":") for label in words.list("labels")),
            agent_id=words.value("agent"),
            shared_root=words.value("root"),
            owner=words.value("owner"),
            keeps_backlog=words.switch("backlog"),
        )
        return self.told(self.fleet.join(node))

    def announce(self, words: Words) -> list[str]:
        """An agent registers, after a restart of it or of the machine, or another one under the same name.

        `found=0,2` are the GPUs that it finds, by the indices that they had first.
        """
        node = self.fleet.nodes[NodeName(words.next())]
        found = words.list("found")
        node = replace(
            node,
            info=node.found(map(int, found)) if found else node.info,
            agent_id=words.value("agent", node.agent_id),
            boot_id=words.value("boot", node.boot_id),
            incarnation=words.integer("incarnation", node.incarnation),
        )
        turn = self.fleet.announce(node)
        if not isinstance(turn.reply, Refused):
            self.fleet.nodes[node.name] = node
        return self.told(turn)

    def inventory(self, words: Words) -> list[str]:
        """A stream is opened: `inventory n1 1/1=running:10s 2/1=exited:0 3/1=starting 4/1=refused:CWD_MISSING`."""
        node = self.fleet.nodes[NodeName(words.next())]
        entries = [seen_of(*split_once(word, "=")) for word in words.rest()]
        return self.told([self.fleet.inventory(node, entries), self.fleet.beat(node.name)])

    def disconnect(self, words: Words) -> list[str]:
        """A node's stream breaks."""
        return self.told(self.fleet.disconnect(NodeName(words.next())))

    def silent(self, words: Words) -> list[str]:
        """A node says nothing more, while its stream seems to hold."""
        self.fleet.nodes[NodeName(words.next())].is_connected = False
        return []

    def beat(self, words: Words) -> list[str]:
        """A sign of life on the stream that there is."""
        node = self.fleet.nodes[NodeName(words.next())]
        node.is_connected = True
        return self.told(self.fleet.beat(node.name))

    def device(self, words: Words) -> list[str]:
        """What a device's next samples say: `device n1:0 free=10GB utilization=90 foreign sick="XID 79"`."""
        name, index = split_once(words.next(), ":")
        node = self.fleet.nodes[NodeName(name)]
        uuid = node.info.devices[int(index)].uuid
        sample = node.samples[uuid]
        total = node.info.devices[int(index)].memory_bytes
        free = words.memory("free", sample.memory_free_bytes or total)
        sick = words.value("sick")
        node.samples[uuid] = replace(
            sample,
            memory_free_bytes=free,
            memory_used_bytes=total - free,
            utilization_percent=words.integer("utilization", sample.utilization_percent or 0),
            processes=(DeviceProcess(pid=4711, is_foreign=True),) if words.switch("foreign") else (),
            is_healthy=not sick,
            unhealthy_reason=sick,
            slowed_by=tuple(words.list("slowed")),
        )
        return self.told(self.fleet.beat(node.name))

    def used(self, words: Words) -> list[str]:
        """What a rank's node tells of the memory that it used: `used 1/1 memory=2GB,60GB watched=15m`."""
        key, node = self.rank(words)
        attempt = self.fleet.job(key.job).attempt
        assert attempt is not None
        devices = attempt.ranks[key.rank].placement.devices
        used = dict(zip((each.uuid for each in devices), map(parse_size, words.list("memory")), strict=True))
        peak = MemoryPeak(span=words.span("watched") or Span(0), used_bytes=used)
        stream = self.fleet.nodes[node].stream
        return self.take_up(NodeBeat(at=self.fleet.now, node=node, stream=stream, peaks=((key, peak),)))

    # --- jobs

    def submit(self, words: Words) -> list[str]:
        """A user submits: see `spec_of` for the arguments, and band= held count= request= dry-run.

        `array=1-9 cap=2 max-fails=1` makes it an array.
        """
        user = UserName(words.next())
        named = words.value("band")
        band = Band[(named or "normal").upper()]
        held, dry_run = words.switch("held"), words.switch("dry-run")
        count, request = words.integer("count", 1), words.value("request")
        items, group = items_of(words), words.value("group")
        spec = spec_of(words, self.fleet.now)
        event = JobsSubmitted(
            at=self.fleet.now,
            user=user,
            jobs=(WantedJob(spec=spec, band=band, is_held=held, group=group, band_may_fall=not named),),
            count=count,
            request_id=request,
            request_digest=str(hash(spec)) if request else "",
            is_dry_run=dry_run,
            items=items,
        )
        return self.take_up(event)

    def group(self, words: Words) -> list[str]:
        """An admin changes a group: `group ml gpus=8 hours=500 max-band=high shares=3 add=ana,ben remove=eva`.

        `group ml to=vision` renames it, and `group ml end` removes it. A band of "none" takes it away.
        """
        at, by, name = self.fleet.now, UserName("admin"), GroupName(words.next())
        if words.switch("end"):
            return self.take_up(GroupRemovalRequested(at=at, by=by, name=name))
        new_name = words.value("to")
        if new_name:
            return self.take_up(GroupRenameRequested(at=at, by=by, name=name, new_name=GroupName(new_name)))
        gpus, hours, shares, band = (words.value(each) for each in ("gpus", "hours", "shares", "max-band"))
        return self.take_up(
            GroupSetRequested(
                at=at,
                by=by,
                name=name,
                gpus_max=int(gpus) if gpus else None,
                gpu_hours_week=int(hours) if hours else None,
                max_band=Band[band.upper()] if band not in ("", "none") else None,
                removes_max_band=band == "none",
                shares=int(shares) if shares else None,
                added=tuple(map(UserName, words.list("add"))),
                removed=tuple(map(UserName, words.list("remove"))),
            )
        )

    def check(self, words: Words) -> list[str]:
        """Whether what a user would submit could start now: arguments as for `submit`."""
        user, band = UserName(words.next()), Band[words.value("band", "normal").upper()]
        event = JobsSubmitted(
            at=self.fleet.now,
            user=user,
            jobs=(WantedJob(spec=spec_of(words, self.fleet.now), band=band),),
            is_dry_run=True,
        )
        turn = self.fleet.take_up(event)
        if not isinstance(turn.reply, Submitted):
            return self.told(turn)
        assert turn.reply.job is not None
        found = capacity(self.fleet.state, turn.reply.job, self.fleet.now)
        return wrapped(f"{'' if found.is_available else 'not '}available: {found.message}")

    def cancel(self, words: Words) -> list[str]:
        reason, abandoned, by = words.value("reason"), words.switch("abandon"), words.value("by", "alice")
        return self.take_up(
            CancelRequested(
                at=self.fleet.now, by=UserName(by), jobs=job_ids(words), reason=reason, is_abandoned=abandoned
            )
        )

    def hold(self, words: Words) -> list[str]:
        return self.take_up(HoldRequested(at=self.fleet.now, by=UserName("alice"), jobs=job_ids(words), is_held=True))

    def release(self, words: Words) -> list[str]:
        return self.take_up(HoldRequested(at=self.fleet.now, by=UserName("alice"), jobs=job_ids(words), is_held=False))

    def band(self, words: Words) -> list[str]:
        band = Band[words.positions.pop().upper()]
        return self.take_up(BandRequested(at=self.fleet.now, by=UserName("admin"), jobs=job_ids(words), band=band))

    def update(self, words: Words) -> list[str]:
        """Another name, band or limit: `update 1 name=x band=low time-limit=2h by=admin`, or time-limit=none."""
        by, name, band, limit = (words.value(each) for each in ("by", "name", "band", "time-limit"))
        return self.take_up(
            UpdateRequested(
                at=self.fleet.now,
                by=UserName(by or "alice"),
                jobs=job_ids(words),
                name=name or None,
                band=Band[band.upper()] if band else None,
                time_limit=span_of(limit) if limit not in ("", "none") else None,
                is_unlimited=limit == "none",
                may_extend=by == "admin",
            )
        )

    def signal(self, words: Words) -> list[str]:
        request, number = words.value("request"), int(words.positions.pop())
        jobs = job_ids(words)
        return self.take_up(
            SignalRequested(
                at=self.fleet.now,
                by=UserName("alice"),
                jobs=jobs,
                signal=number,
                request_id=request,
                request_digest=f"{jobs} {number}",
            )
        )

    def enter(self, words: Words) -> list[str]:
        """A person enters an attempt: `enter 1/1 8888`, or `enter 1/1 nvidia-smi`."""
        how = words.positions.pop()
        job, _, attempt = words.positions.pop().partition("/")
        is_port = how.isdecimal()
        return self.take_up(
            EntryRequested(
                at=self.fleet.now,
                by=UserName("alice"),
                job=JobId(int(job)),
                attempt=int(attempt),
                port=int(how) if is_port else 0,
                command="" if is_port else how,
            )
        )

    def left(self, words: Words) -> list[str]:
        """A node has brought what a rank left: `left 1/1 stored`, `incomplete`, `not-wanted` or, given up, `lost`.

        `kept=copy1` is what came for the next attempt.
        """
        outcome, kept = ResultsOutcome[words.positions.pop().upper().replace("-", "_")], words.value("kept")
        key = key_of(words.next())
        messages = {
            ResultsOutcome.STORED: "",
            ResultsOutcome.INCOMPLETE: "not among it: 'link' is a link",
            ResultsOutcome.NOT_WANTED: "10 newer attempts have ended since",
            ResultsOutcome.LOST: "node n1 gave it up: it could not be stored for 7 d",
        }
        is_stored = outcome in (ResultsOutcome.STORED, ResultsOutcome.INCOMPLETE)
        told = ResultsReported(
            at=self.fleet.now,
            key=key,
            outcome=outcome,
            kept=self._copy(key, kept) if kept else None,
            file_count=2 if is_stored else 0,
            size_bytes=300 if is_stored else 0,
            message=messages[outcome],
        )
        return self.take_up(told)

    def checkpoint(self, words: Words) -> list[str]:
        """A rank that runs has had what it keeps stored: `checkpoint 1/1 copy1`."""
        name = words.positions.pop()
        key = key_of(words.next())
        return self.take_up(CheckpointStored(at=self.fleet.now, key=key, copy=self._copy(key, name)))

    def _copy(self, key: RankKey, name: str) -> KeptCopy:
        folder = InputFolder(digest=name, size_bytes=90, entry_count=3, content_bytes=70)
        return KeptCopy(rank=key.rank, attempt=key.attempt, given_at=self.fleet.now, folder=folder)

    def untold(self, words: Words) -> list[str]:
        """A notice of a rank was not delivered: `untold 1/1 end reason="it ended with code 5"`."""
        why, notice = words.value("reason"), words.positions.pop()
        key, node = self.rank(words)
        failed = NoticeFailed(at=self.fleet.now, node=node, key=key, number=1, notice=notice, message=why)
        return self.take_up(failed)

    def requeue(self, words: Words) -> list[str]:
        reason = words.value("reason")
        return self.take_up(
            RequeueRequested(at=self.fleet.now, by=UserName("alice"), jobs=job_ids(words), reason=reason)
        )

    # --- what nodes report

    def ready(self, words: Words) -> list[str]:
        """A rank of a gang is prepared: `ready 1/1.0 port=29500`."""
        key, node = self.rank(words)
        port = words.integer("port", 0)
        return self.take_up(RankReady(at=self.fleet.now, node=node, key=key, master_port=port))

    def preparing(self, words: Words) -> list[str]:
        """A beat says that a rank is being prepared: `preparing 1/1.0 still=5s message="its files come"`."""
        key, node = self.rank(words)
        told = Preparation(key=key, still=words.span("still") or Span(0), message=words.value("message"))
        return self.told(self.fleet.beat(node, told))

    def started(self, words: Words) -> list[str]:
        key, node = self.rank(words)
        return self.take_up(RankStarted(at=self.fleet.now, node=node, key=key, run_span=words.span("run") or Span(0)))

    def exited(self, words: Words) -> list[str]:
        """`exited 1/1 code=0`, or signal=9, unknown, by-time-limit, by-cancel, by-fence; stdout=N bytes written.

        With `ran=5s` it says that its command started so long ago.
        """
        key, node = self.rank(words)
        started_ago = words.span("ran")
        exit_ = exit_of(words, key.rank)
        job = self.fleet.state.durable.jobs.get(key.job)
        if job is not None and job.attempt is not None and "memory" in words.values:
            placed = job.attempt.ranks[key.rank].placement.devices
            exit_ = replace(exit_, use=use_of(words, [device.uuid for device in placed]))
        return self.take_up(RankExited(at=self.fleet.now, node=node, key=key, exit=exit_, started_ago=started_ago))

    def synced(self, words: Words) -> list[str]:
        """The store has so many bytes: `synced 1/1 stdout=100`."""
        key = key_of(words.next())
        return self.take_up(OutputSynced(at=self.fleet.now, key=key, ends=ends_of(words, key.rank)))

    def refused(self, words: Words) -> list[str]:
        """`refused 1/1 DEVICE_BUSY device=0`; with `kind=job-now` as an agent says it that knows kinds."""
        key, node = self.rank(words)
        told = words.value("kind")
        kind = RefusalKind(told.replace("-", " ")) if told else None
        reason, message = words.next(), words.value("message")
        uuids = {DeviceUuid(f"{node}-gpu{index}") for index in words.list("device")}
        samples = tuple(each for each in self.fleet.nodes[node].readings(self.fleet.now) if each.uuid in uuids)
        return self.take_up(
            RankRefused(
                at=self.fleet.now, node=node, key=key, reason=reason, message=message, samples=samples, kind=kind
            )
        )

    def spool(self, words: Words) -> list[str]:
        key, node = self.rank(words)
        is_full = words.next() == "full"
        return self.take_up(SpoolFilled(at=self.fleet.now, node=node, key=key, is_full=is_full))

    def damaged(self, words: Words) -> list[str]:
        """A node's disk has changed output: `damaged 1/1 stdout 0 16384`."""
        key, node = self.rank(words)
        stream, start, end = OutputStream[words.next().upper()], int(words.next()), int(words.next())
        return self.take_up(OutputDamaged(at=self.fleet.now, node=node, key=key, stream=stream, start=start, end=end))

    # --- administration

    def probed(self, words: Words) -> list[str]:
        """A node has read a probe in a shared folder: `probed n1 team`."""
        node, root = NodeName(words.next()), words.next()
        return self.take_up(SharedRootChecked(at=self.fleet.now, node=node, root=root))

    def drain(self, words: Words) -> list[str]:
        reason = words.value("reason")
        return self.take_up(
            DrainRequested(
                at=self.fleet.now,
                by=UserName("admin"),
                node=NodeName(words.next()),
                is_draining=True,
                reason=reason,
            )
        )

    def resume(self, words: Words) -> list[str]:
        return self.take_up(
            DrainRequested(at=self.fleet.now, by=UserName("admin"), node=NodeName(words.next()), is_draining=False)
        )

    def forget(self, words: Words) -> list[str]:
        return self.take_up(ForgetRequested(at=self.fleet.now, by=UserName("admin"), node=NodeName(words.next())))

    def token(self, words: Words) -> list[str]:
        token = Token(
            id=TokenId(words.next()),
            user=UserName(words.value("user", "alice")),
            role=Role(words.value("role", "user")),
            digest="00",
            created_at=self.fleet.now,
        )
        return self.take_up(TokenRequested(at=self.fleet.now, by=UserName("admin"), token=token))

    def revoke(self, words: Words) -> list[str]:
        return self.take_up(RevokeRequested(at=self.fleet.now, by=UserName("admin"), token=TokenId(words.next())))

    # --- time and the scheduler

    def advance(self, words: Words) -> list[str]:
        """Let time pass; connected nodes beat, and deadlines come."""
        return self.told(self.fleet.advance(span_of(words.next())), timed=True)

    def restart(self, words: Words) -> list[str]:
        """The scheduler ends and starts again, now or `after=10m`."""
        self.fleet.now = Instant(self.fleet.now + (words.span("after") or 0))
        return self.told(self.fleet.restart())

    def copy(self, words: Words) -> list[str]:
        """The store is copied, to be put back later."""
        self.copied = self.fleet.copy()
        return []

    def put_back(self, words: Words) -> list[str]:
        """The copy is all that there is, and the scheduler starts and is told to go on: `put-back above=1000`."""
        self.fleet.now = Instant(self.fleet.now + (words.span("after") or 0))
        assert self.copied is not None, "nothing was copied"
        return self.told(self.fleet.put_back(self.copied, words.integer("above", 0), words.value("lineage", "")))

    def stalled(self, words: Words) -> list[str]:
        """The scheduler read nothing for a while."""
        gap = span_of(words.next())
        self.fleet.now = Instant(self.fleet.now + gap)
        return self.take_up(ReadingResumed(at=self.fleet.now, gap=gap))

    def limit(self, words: Words) -> list[str]:
        """A number of the rules is set: `limit queued-jobs=2`."""
        weights = self.fleet.limits.score_weights
        self.fleet.limits = replace(
            self.fleet.limits,
            request_retention=words.span("request-retention") or self.fleet.limits.request_retention,
            left_out_span=words.span("device-pause") or self.fleet.limits.left_out_span,
            node_order=NodeOrder(words.value("node-order", self.fleet.limits.node_order)),
            score_weights=ScoreWeights(
                free_memory=float(words.value("free-memory-weight", str(weights.free_memory))),
                idleness=float(words.value("idleness-weight", str(weights.idleness))),
            ),
            warnings=WarningLimits(
                idle_span=words.span("idle-span") or self.fleet.limits.warnings.idle_span,
                memory_percent=words.integer("memory-percent", self.fleet.limits.warnings.memory_percent),
            ),
            queued_jobs=words.integer("queued-jobs", self.fleet.limits.queued_jobs),
            user_gpus_max=words.integer("user-gpus", self.fleet.limits.user_gpus_max),
            age_limit=words.span("age") or self.fleet.limits.age_limit,
            user_jobs_max=words.integer("user-jobs", self.fleet.limits.user_jobs_max),
            node_losses=words.integer("node-losses", self.fleet.limits.node_losses),
            time_outs=words.integer("time-outs", self.fleet.limits.time_outs),
            blameless_losses=words.integer("blameless-losses", self.fleet.limits.blameless_losses),
            default_min_memory_bytes=words.memory("min-memory", self.fleet.limits.default_min_memory_bytes),
            routing=GpuRouting(
                gpu_wait=words.span("gpu-wait") or self.fleet.limits.routing.gpu_wait,
                gpu_queue_limit=words.integer("gpu-queue", self.fleet.limits.routing.gpu_queue_limit),
            ),
        )
        self.fleet.state.limits = self.fleet.limits
        return []

    # --- looking

    def explain(self, words: Words) -> list[str]:
        job = self.fleet.job(int(words.next()))
        told = explain(self.fleet.state, job, self.fleet.now, self.promises)
        ahead = f"; {told.ahead_count} ahead: {', '.join(map(str, told.ahead))}" if told.ahead else ""
        lines = [f"{told.reason}: {told.sentence}{ahead}"]
        for verdict in told.nodes:
            miss = verdict.miss
            lines.append(f"  node {verdict.node}: {miss.reason + ': ' + miss.clause if miss else 'could take it now'}")
        if told.estimated_start is not None:
            lines.append(f"starts in {span_text(told.estimated_start - self.fleet.now)}, as expected")
        if told.latest_start is not None:
            lines.append(f"starts in {span_text(told.latest_start - self.fleet.now)} at the latest")
        lines += [told.bound_sentence] if told.bound_sentence else []
        return lines + ([f"would start now {told.nearest_change}"] if told.nearest_change else [])

    def queue(self, words: Words) -> list[str]:
        jobs = sorted(self.fleet.state.durable.jobs.values(), key=lambda job: job.id)
        order = [str(job.id) for job in queue_order(self.fleet.state, self.fleet.now)]
        alike = {
            job
            for equal in self.fleet.state.durable.jobs.entities()
            if isinstance(equal, EqualJobs)
            for job in equal.ids()
        }
        lines = [
            f"job {job.id} {state_text(job, self.fleet.state.durable)}"
            for job in jobs
            if job.id not in alike or job.array is None
        ]
        shown = order if len(order) <= ORDER_SHOWN else [*order[:3], "…", order[-1]]
        return [*lines, f"order: {' '.join(shown)}"] if order else lines or ["empty"]

    def show(self, words: Words) -> list[str]:
        """A job: its state, and its attempts that are over."""
        job = self.fleet.job(int(words.next()))
        lines = [f"job {job.id} {state_text(job, self.fleet.state.durable)}"]
        for ended in job.past:
            cut = "" if ended.output_is_complete else ", output incomplete"
            lines.append(
                f"  attempt {ended.number}: {ended.reason}{': ' + ended.message if ended.message else ''}{cut}"
            )
        return lines

    def story(self, words: Words) -> list[str]:
        """A job's records as sentences."""
        job = JobId(int(words.next()))
        known = self.fleet.job(job)
        return [
            sentence(record)
            for record in self.fleet.store.records
            if job_of(record) == job or (job_of(record) == known.told_with and is_shared(record, known))
        ]

    def devices(self, words: Words) -> list[str]:
        """A node's devices as they are listed."""
        node = self.fleet.state.durable.nodes[NodeName(words.next())]
        marks = {mark.uuid: mark.reason for mark in node.unhealthy}
        held = self.fleet.state.durable.hold(node.name).devices
        return [
            f"{device.index}: {device.uuid}"
            + (f", job {held[device.uuid]}" if device.uuid in held else "")
            + (f", unhealthy: {marks[device.uuid]}" if device.uuid in marks else "")
            for device in node.info.devices
        ]

    def holds(self, words: Words) -> list[str]:
        """What is given on each node."""
        lines = []
        for name, hold in sorted(self.fleet.state.durable.holds.items()):
            ranks = " ".join(str(key) for key in sorted(hold.ranks))
            shared = ", ".join(
                f"{sum(shares[job].milli for job in shares) / 1000:g} of {uuid} to {jobs}"
                for uuid, shares in hold.shares.items()
                for jobs in [" and ".join(map(str, sorted(shares)))]
            )
            shared = f" ({shared})" if shared else ""
            lines.append(f"{name}: {ranks} with {len(hold.devices)} GPUs{shared}, {hold.cpus} CPUs")
        return lines or ["nothing is held"]

    # --- words

    def rank(self, words: Words) -> tuple[RankKey, NodeName]:
        """A rank, and the node that reports it: where it is placed, unless `from=` says another."""
        key = key_of(words.next())
        said = words.value("from")
        if said:
            return key, NodeName(said)
        job = self.fleet.job(key.job)
        ranks = {each.number: each.ranks for each in job.past}
        if job.attempt is not None:
            ranks[job.attempt.number] = job.attempt.ranks
        assert key.attempt in ranks, f"{key} is not known any more: say from=NODE"
        return key, ranks[key.attempt][key.rank].placement.node


ORDER_SHOWN = 40
"""A longer order is told by its first jobs and its last."""

Command = Callable[[Transcript, Words], list[str]]
COMMANDS: dict[str, Command] = {
    "node": Transcript.node,
    "announce": Transcript.announce,
    "inventory": Transcript.inventory,
    "disconnect": Transcript.disconnect,
    "silent": Transcript.silent,
    "beat": Transcript.beat,
    "device": Transcript.device,
    "submit": Transcript.submit,
    "group": Transcript.group,
    "cancel": Transcript.cancel,
    "hold": Transcript.hold,
    "release": Transcript.release,
    "band": Transcript.band,
    "update": Transcript.update,
    "signal": Transcript.signal,
    "enter": Transcript.enter,
    "left": Transcript.left,
    "checkpoint": Transcript.checkpoint,
    "untold": Transcript.untold,
    "requeue": Transcript.requeue,
    "ready": Transcript.ready,
    "preparing": Transcript.preparing,
    "started": Transcript.started,
    "used": Transcript.used,
    "exited": Transcript.exited,
    "synced": Transcript.synced,
    "refused": Transcript.refused,
    "spool": Transcript.spool,
    "damaged": Transcript.damaged,
    "probed": Transcript.probed,
    "drain": Transcript.drain,
    "resume": Transcript.resume,
    "forget": Transcript.forget,
    "token": Transcript.token,
    "revoke": Transcript.revoke,
    "advance": Transcript.advance,
    "restart": Transcript.restart,
    "copy": Transcript.copy,
    "put-back": Transcript.put_back,
    "stalled": Transcript.stalled,
    "limit": Transcript.limit,
    "check": Transcript.check,
    "explain": Transcript.explain,
    "queue": Transcript.queue,
    "show": Transcript.show,
    "story": Transcript.story,
    "devices": Transcript.devices,
    "holds": Transcript.holds,
}


class Answers(Protocol):
    """A run of a golden file."""

    def answer(self, line: str) -> list[str]:
        """Run one command and tell what followed."""
        ...


def run(path: Path, begin: Callable[[], Answers] = Transcript) -> str:
    """The file as it should be: its comments and commands, with what follows from them now."""
    transcript = begin()
    lines: list[str] = []
    for line in path.read_text().splitlines():
        if line.startswith("  "):
            continue
        lines.append(line.rstrip())
        if line and not line.startswith("#"):
            try:
                lines.extend(f"  {told}" for told in transcript.answer(line))
            except Exception as problem:
                problem.add_note(f"{path.name}: {line}")
                raise
    return "\n".join(lines) + "\n"
