"""The Scheduler service, the part about models and people: lines, turns, workers, who may join, who came.

Read `sessions.py` (for gateways, workers and people) and `models.py` (what is served).
"""
