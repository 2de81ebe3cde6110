"""The fleet as other people's programs use it: `import gpufleet`.

`AsyncFleet` and `AsyncJob` do the work, on asyncio; `Fleet` and `Job` are the same for programs without, and run it on
a thread of its own (`loop_thread.py`). `tasks.py` makes an array of Python calls and `gathering.py` brings back what
they gave, for `fleet.map` and for `Executor`; `task_program.py` is what runs on the node. Nothing here does what gpuctl
cannot: all of it stands on gpufleet/fleet. Read `fleet.py` first.
"""

import gpufleet.host.grpc_names  # noqa: F401  before anything imports grpc
