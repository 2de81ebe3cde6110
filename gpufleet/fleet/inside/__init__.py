"""What a running job has inside, from here: its ports at this machine's loopback address, and commands in it.

Read `ports.py` (what is typed, and where this machine listens), then `forwarding.py` (what becomes of a connection),
and `executing.py` for a command whose output is wanted. One that is typed to is gpuctl's own (cli/inside/executing.py).
"""
