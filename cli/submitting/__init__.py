"""Jobs that are to be: `submit`, `run`, `shell`, `attach`, and whether there is room (`check`, `estimate`).

Read `job_options.py` (the table of what may be typed, and which field each option sets), `option_kinds.py` (how a kind
of value is read and shown) and `job_spec.py` (the request that comes of it, and the line that submits a job again).
"""
