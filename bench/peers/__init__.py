"""What people use today, measured beside gpufleet in the same run: HyperQueue, Slurm and task-spooler.

`compare.py` holds the rows, `peer.py` says what is asked of a program, and each other file is one. All of them run on
this machine alone, with as many slots as the node of the running fleet has CPUs. One that is not installed is left out,
and said so.
"""
