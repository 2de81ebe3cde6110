"""What the scheduler knows, as plain values.

Start with `jobs.py` (a job and its states; what was asked for is in `specs.py`, its runs are in `attempts.py`), then
`events.py` (what can happen), `records.py` (what was decided, the only thing that is stored) and `commands.py` (what
others are asked to do). `durable.py` holds everything that survives a restart; only `apply` in `apply.py` changes it.
`live.py` holds what is rebuilt after one, `indexes/` what follows from the rest. `invariants.py` says what must always
be true. `sessions/` is the same for models that are served, and for who waits for them.

Nothing here reads a clock, a file or a socket, and nothing decides: this package imports only the standard library.
"""
