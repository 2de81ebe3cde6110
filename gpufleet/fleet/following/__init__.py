"""Staying with something that changes, through silence and lost connections.

`core.py` decides, with time as an argument and nothing else: when to open the stream again, when to ask whether the job
lives, when to give up, and what a Ctrl-C means. `shell.py` carries out both with grpc and asyncio, for any `Feed`: a
job's output or a program's log (`output.py`), or changes of jobs (`job_updates.py`). Read `core.py` first.
"""
