"""What was: courses of attempts and devices, the queue, and what users held, in files of their own.

Nothing is decided by them, and no commit waits for them: a disk that is full costs pictures and no job. `recorder.py`
takes down what beats and commits tell, and is the file to read first; `points.py`, `courses.py` and `accounts.py` are
the values, `ledger.py` sees to it that what was held is counted once, `queries.py` and `reading.py` answer what people
ask. `attempts.py` keeps the course of each attempt that ended, as its node told it.
"""
