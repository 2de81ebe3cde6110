"""What follows from the entities of the durable state, kept so that nothing is searched: never stored, built at starts.

Read `indexes.py` (what nodes, users and groups hold, and where jobs are), then `lines.py` (who waits, by band, user and
what they ask for) and `slots.py` (places that attempts of like jobs take one after the other). `equal_jobs.py` keeps
jobs that are equal as one.
"""
