"""`nodes`, `drain`, `resume`: the machines.

`nodes.py` has the options; `node_calls.py` asks the scheduler and prints.
"""
