"""As whom jobs run on this node, and within what: docs/isolation.md, rules 4.31, 4.32 and 4.37 of docs/rules/jobs.md.

`choice.py` decides how, by the settings and by what `probe.py` finds that this agent can do. `accounts.py` says what a
launch gets of it, `device_nodes.py` which devices there are to be opened, and `limits.py` what bounds it. The keeper
does it (`keeper/isolated.py`, `keeper/becoming.py`, `keeper/jail.py`).
"""
