"""The Scheduler service, the part about jobs: submit, change, list, watch, and why they wait.

Read `jobs.py` (the calls of people who look), `submitting.py` and `actions.py` (those who act).
"""
