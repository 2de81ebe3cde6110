"""Starts the programs of a test by fork(2) from a process that has imported them, in place of exec(2).

A scheduler that is started by exec costs 0.7 s of CPU, nearly all of it for imports; forked, it costs 0.15 s.
`starting.py` hooks into `subprocess.Popen`, so that every test gains: what it starts as `python -P -m
gpufleet.scheduler`, with subprocess or asyncio, becomes a child of the test's process with a pid, session, descriptors,
environment, working directory, limits and command line of its own, as /proc shows them. `server.py` is the process that
forks; it imports nothing of the tests. `process_image.py` makes the child look, to itself and to /proc, as if exec had
started it.

Where the server cannot imitate an exec, the start is an exec (`starting.request_for` decides). A test of start-up
itself is marked `by_exec`. tests/selftest/test_fork_server.py compares the two ways.
"""
