"""What the scheduler chooses, as pure functions of the state.

Read `order/` (which job next), `fit.py` (which node and devices can hold it, and why not), `placement.py` (which of
them it gets), `backlog.py` (what waits on a node behind its like), `reservation.py` (what is kept for the first job
that cannot be placed), then `admission.py` (what is refused at submit), `explain.py` (the same answers in words) and
`page_reasons.py` (those of a page). `groups/` and `sessions/` are what groups of users, and models, mean for choices.
`estimate.py` stands alone: what a model's file needs.

A choice never changes anything: `core` turns it into records. Explaining uses the functions that place, so that an
explanation cannot disagree with a decision.
"""
