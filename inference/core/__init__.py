"""The worker's decisions, as values and small machines without a clock. Read `inputs.py` first, then `turns.py`.

    inputs.py     which inputs a step takes: SESSIONS.md section 4
    pacing.py     how many frames may be under way, and which one waits
    quality.py    how good a picture the client's link carries
    turns.py      whose turn it is: seats, epochs, tickets that were used, turns without a stream
    presence.py   what counts as real input, and how long there was none
    ticking.py    when a model that animates steps next

Never here: asyncio, threads, grpc, a clock, chance, the model's own types. Times are microseconds of one steady clock.
"""
