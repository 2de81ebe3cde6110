"""What the inference client decides: which worker is asked for what, when again, and when no more.

Everything here is given its time and its chance, and does nothing itself: `dispatch.py` takes what has happened and
says what is to be done next. Read `outcomes.py` and `calls.py` (the values), then `dispatch.py`; `placing.py` and
`workers.py` choose among workers, and `circuit.py`, `retrying.py`, `suspects.py` and `sums.py` each stand alone. No
transport, no clock, no thread.
"""
