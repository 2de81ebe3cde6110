"""A container in a keeper's hands: an attempt whose process is a runner, and whose container ends with it.

`runner.py` starts the container that the agent made, carries its streams (`streams.py`) and leaves with its exit code.
`entered.py` does the same of another command in it. `state.py` is what a runner writes down meanwhile, `ending.py` how
a container is signalled and ended by whoever holds the attempt, and `asking.py` the calls of the engine that need no
SDK, and `engine_words.py` what an engine means that refuses. `memory.py` says whether it was the kernel that ended some
of it for want of memory. All of it is the standard library's alone, as its keeper is.
"""
