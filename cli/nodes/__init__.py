"""`nodes`, `drain`, `resume`: the machines; `workers`: what each of them is at.

`nodes.py` and `workers.py` have the options; `node_calls.py` and `worker_calls.py` ask the scheduler and print.
"""
