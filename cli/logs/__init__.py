"""`logs`: the output of jobs and of models' workers, or the log of a program.

`command.py` has the options, `request.py` reads them, `jobs.py` prints.
"""
