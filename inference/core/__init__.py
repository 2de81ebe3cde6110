"""The worker's decisions, as values and small machines without a clock. Read `inputs.py` first, then `turns.py`.

    inputs.py     which inputs a step takes: docs/rules/sessions.md 4.1
    pacing.py     how many frames may be under way, which one waits, and how good a picture the client's link carries
    turns.py      whose turn it is: seats, epochs, tickets that were used, turns without a stream
    presence.py   what counts as real input, and how long there was none
    rhythm.py     when a step begins: by ticks, and whether it waits for an input
    replicas.py   of a served program: when it takes requests, when it is told to end, how it ended
    batching.py   of a model that answers requests: which items are computed together, and when; deadlines, retries
    batch_size.py of the same: how many items of a batch are worth while

Never here: asyncio, threads, grpc, a clock, chance, the model's own types. Times are microseconds of one steady clock.
"""
