"""The supervisor behind `up` and `down`: a scheduler and an agent on this machine, started and stopped as children.

It knows the programs only as command lines. `record.py` remembers what was started (pid and start ticks, so that a
reused pid is never signalled), `supervisor.py` starts, watches and stops.
"""
