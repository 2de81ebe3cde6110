"""Staying with something that changes, through silence, lost connections and Ctrl-C.

`core.py` decides, with time as an argument and nothing else: when to open the stream again, when to ask whether the
job lives, when to give up. `interrupts.py` decides what a Ctrl-C means. `shell.py` carries out both with grpc and
asyncio, for any `Feed`: a job's output (`output.py`), a program's log
(`program_log.py`) or changes of jobs (`changes.py`). Read `core.py` first.
"""
