"""`gpuctl queue -w`: the queue drawn again on every change, with the keys of every program that fills the terminal.

`picture.py` says which jobs are shown, in which order, and the lines; `program.py` reads, follows and draws.
One look without staying is `queue_view.py`. Read `picture.py` first.
"""
