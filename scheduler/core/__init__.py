"""The scheduler's decisions: `decide(state, event)` answers the records and commands that follow from an event.

Start with `decide.py`. `jobs.py` holds what people ask of jobs, `attempts.py` what nodes report of them, `nodes.py`
what happens to nodes, `access.py` tokens; `scheduling.py` is the pass that places; `deadlines.py` says when time alone
changes something; `story.py` tells records as sentences. `sessions/` is all of it for models, sessions and turns.

Pure: the same state and event give the same decision, so that a run can be replayed, simulated and explained.
"""
