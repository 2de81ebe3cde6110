"""The Scheduler service, the part about what jobs write and what is typed to them.

Read `following.py` (StreamOutput of a job), then `attaching.py` (AttachJob and the channels of agents).
"""
