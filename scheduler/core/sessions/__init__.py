"""What follows from events for models, sessions and turns.

Start with `decide.py` (what a join, a leave, a lost connection or a lost worker means), then `turns.py` (once a turn of
the loop: who is called to a seat, who is told what). `serving.py` and `exclusive.py` hold what people ask of models,
`workers.py`, `worker_ends.py` and `worker_seats.py` the jobs that their workers are; `story.py` tells it in sentences.
What is chosen is in `policy/sessions/`.
"""
