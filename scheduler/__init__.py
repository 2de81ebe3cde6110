"""The scheduler: the one process that decides which job runs where, and stores what it decided.

Read `core/decide.py` first: one event, one decision. `state/` says what there is to know, `policy/` how to choose,
`core/` what follows from an event; these three are pure, in that order, and reach the world through `ports.py` only.
Around them: `engine.py` (the loop: decide, commit, then act; the only place where the core meets store and clock),
`store/`, `outputs/` and `series/` (what survives), `wire/` (protos and values), `api/` and `links.py` (who asks, and
the way down to the nodes), `metrics/` (what it measures), `program.py` and `__main__.py` (settings, start, stop).
Nothing here imports another program, and nobody decides outside the core.
"""
