"""gpuctl, the command line.

A thin client: every command is one or two calls to the scheduler, and what it shows anybody can read with grpcurl.
It never decides anything, never imports another program, and never imports grpc before a command needs it, so that
help and completion answer at once.

Read first: `menu.py`, the table of all commands. `commands/` declares what people type, a module for each row or
two of the table; `options.py` holds the options that commands share. `client.py` calls the scheduler; `following/`
stays with a job through lost connections; `render/` draws; `errors.py` says how failures read and which exit code
they give. `doctor/` looks for what is wrong between here and the GPUs; `local/` is the supervisor behind `up` and
`down`.
"""
