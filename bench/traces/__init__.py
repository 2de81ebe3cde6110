"""Real queues replayed through the scheduler's own core, beside a plain EASY: what its decisions are worth.

Read `__main__.py` for what is printed, `logs.py` for what is replayed (Standard Workload Format), `replay.py` for how,
`easy.py` for what it is compared with, `figures.py` for what is counted. The logs are no part of the project: without
them nothing is measured, and it is said where they were looked for.
"""
