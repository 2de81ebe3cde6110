"""gpuctl, the command line.

A thin client: every command is one or two calls to the scheduler, and what it shows anybody can read with grpcurl.
What is more than a call is the library's, gpufleet/fleet, on which programs of other people stand as well.
It never decides anything, never imports another program, and never imports grpc before a command needs it, so that
help and completion answer at once; nor typer, as long as what is typed is plain (`plain_call.py`).

Read first: `menu.py`, the table of all commands. Commands stand by noun, with what only they need beside them:
`submitting/`, `jobs/`, `logs/`, `nodes/`, `devices/`, `sessions/`, `admin/`. What they share: `declaring.py` and
`options.py` (what can be typed), `app.py` and `spreading.py` (the same as typer wants it: help, completion, mistakes),
`errors.py` (how failures read, and their exit codes), `render/` (drawing), `following/` and `attaching/` (staying with
a job), `full_screen/` (views that stay: `top_view/`, `queue_watch/`), `scripts/` (scripts that are submitted),
`doctor/`, and `local/` (the supervisor behind `up` and `down`).
"""
