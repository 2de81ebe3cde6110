"""The servicers above the engine: they check, convert, post and wait, and decide nothing.

Read `server.py` (what is served), `roles.py` (who may call what), `jobs.py` and `nodes.py` (the Scheduler service in
two halves), `agents.py` (the NodeAgent service). Values become protos in `convert.py` and the three beside it, and
protos become values in `validate.py` (of people) and `validate_reports.py` (of agents), which name the field that is
wrong; the rest only passes them on. Nothing below this package (and `links.py`) knows a proto; a test holds that.
"""
