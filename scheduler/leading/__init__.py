"""Who leads where several schedulers share a store: one does, the others stand by and take over when it is gone.

Read `judging.py` first: what a standby sees, and when it takes over. `runs.py` is how they know of each other, a row
for each in the store; `beats.py` is the leader's side of that, `standing_by.py` that of a standby, `following.py` what
keeps it warm. `keys.py` says whether their data folders hold the same keys, `database_clock.py` is the clock that all
of them count by, `opening.py` opens the store of a start, and `starting.py` is a start until it leads: signals, and a
database that is waited for. The rules are docs/rules/jobs.md, 6.

Nothing here decides on jobs, and nothing elects: the store's lock, which PostgreSQL gives to one, is who leads. Where
the store is SQLite there is nobody else.
"""
