"""What the scheduler knows of models, sessions and turns, as plain values.

Start with `session.py` (a model, a session and where it stands), then `events.py`, `records.py` and `commands.py`,
which are to sessions what the files of the same names one room up are to jobs. `turns.py` holds what is known only
while the scheduler runs: who is there, whose turn is limited, which workers are connected; `serving.py` how those are
seen to.

What holds for `state` holds here: nothing reads a clock, a file or a socket, and nothing decides.
"""
