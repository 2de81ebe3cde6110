"""The servicers above the engine: they check, convert, post and wait, and decide nothing.

Read `server.py` (what is served), `roles.py` (who may call what), `jobs.py` and `nodes.py` (the Scheduler service in
two halves), `agents.py` (the NodeAgent service). `convert.py` alone knows both the protos and the state; `validate.py`
turns a request into values or names the field that is wrong.
"""
