"""Figures of the running system, each beside a floor measured in the same run.

`python -m bench` starts a real scheduler and a real agent, measures, prints a table and writes JSON. `floors.py` holds
what the machine itself costs, `measures.py` the figures, `fleet.py` the processes. Nothing here asserts a time: these
are readings, and a ratio to a floor says more than either.
"""
