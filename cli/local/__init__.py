"""The supervisor behind `up` and `down`: a scheduler and an agent on this machine, started and stopped as children.

It knows the programs only as command lines. Read `up.py` first. `starting.py` and `stopping.py` start and stop,
`child.py` is a program that was started, `up_options.py` says with what; `folders.py` says where things are kept, and
remembers what was started (pid and start ticks, so that a reused pid is never signalled).
"""
