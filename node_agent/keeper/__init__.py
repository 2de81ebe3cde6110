"""Runs what the scheduler launches on this node, and goes on doing so when the agent is gone.

The keeper is a small process of the standard library, this program's core and `gpufleet.jobs.runs`. It starts
commands, moves their output to the spool, enforces time limit, grace and fence, and records ends; it knows neither
network nor scheduler. Nothing here may import anything else, and none of it later than at its start: an upgrade may
put other files in the place of these under jobs that run. Only `client.py`, `roster.py` and `connection.py`, which are
the agent's, may use asyncio.

Read `keeper.py` first: what it holds and does. Then `supervised.py` (one attempt from process to end), `output.py` and
`input.py`, `descriptors.py` (pipes, or a terminal that outlives the agent), `crew.py`, `supervisor.py`, `wire.py`,
`spawn.py` and `processes.py` (how processes begin and how none is left), `seccomp.py` (which system calls an isolated
one is refused), `records.py` (what is written down,
and why that makes a launch happen once), `reactor.py` (the loop: no ticks), `door.py`, `frames.py`,
`requests.py`, `reports.py`, `values.py` (the socket, from bytes to meaning), `life.py` (detaching, locks,
leaving). For the agent: `client.py`, on `roster.py` (which keepers there are), `connection.py`, `events.py` and
`aftermath.py` (what is done when a keeper was killed).

    async with await Keepers.open(state_dir, build=version) as keepers:
        await keepers.inventory()                 # the whole truth, first; also what dead keepers left
        await keepers.set_fence(sent_us)          # when the newest acknowledged heartbeat was sent
        await keepers.launch(Launch(key=RankKey(JobId(7), 1, 0), argv=..., env=..., cwd=..., heartbeat_sent_us=...))
        event = await keepers.next_event()        # AttemptStarted, AttemptEnded, SpoolChanged, KeeperDied …
        await keepers.acknowledge(event)          # or it comes again after a reconnect
        await keepers.wait_for_output(key, have)  # then SpoolReader(view.directory).read(...)
        await keepers.output_synced(key, offsets) # the spool below is deleted
        await keepers.begin_input(key, writer)    # then type(...), resize(...): a launch with input=PIPE or TERMINAL
        await keepers.stop(key, cause)            # signal, kill
        await keepers.forget(key)                 # after its end and output are stored; a tombstone stays

Expected refusals are answered as `Refusal`; `KeeperGone` is raised when the keeper hung up under a request.
All times are microseconds of CLOCK_BOOTTIME (`boottime_us`). Strings that are no UTF-8 travel with
surrogateescape.
"""
