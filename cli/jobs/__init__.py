"""Jobs that are there: look at them (`job`, `queue`, `history`, `wait`) and change them (`change`).

A command's module has its options; the file beside it with its helper's name does the work. `named_jobs.py` reads what
names jobs, and asks the scheduler for what only it knows.
"""
