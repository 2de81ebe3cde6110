"""What is chosen for models, their workers and the people who come to them.

Read `turns.py` first (who is limited when others wait, who is called next), then `scaling.py` (how many workers a model
has), `serving.py` and `revisions.py` (by what numbers they run, and how newer ones take over), `exclusive.py` (who goes
to sleep for whom), `suspicion.py` and `room.py`. What is known is in `state/sessions/`; `core/sessions/` makes records
of what is chosen here.
"""
