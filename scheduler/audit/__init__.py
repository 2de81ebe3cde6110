"""The audit: who called what, when, from where, on what, and how it ended.

    a call ─▶ scheduler/api/auditing.py ─▶ limits.py (what comes too often is counted) ─▶ log.py (a queue) ─▶ the store

Read `log.py` first. `scheduler/api/audited_calls.py` has a row for each call of the contract: whether it is written
down, and what of its request names what it is done to. `state/audited.py` is what a row of the audit holds. Nothing
here decides, and no call waits for it: rows are written up to a second later, from a queue that has a bound; what does
not fit in is counted, and the count is a row, too.

It must never hold what people keep for themselves: values of variables and secrets, tokens, what a command printed.
"""
