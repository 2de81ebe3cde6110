"""The durable truth of the scheduler: the story (records), what lives (entities) and what has ended (finished jobs).

Read `store.py` first: what a commit asserts. `opening.py` opens a URL; `database.py` says what a database must do, and
`sqlite.py` and `postgres.py` do it with statements from `statements.py` over the tables of `schema.py`, which
`migrations` makes. `codec.py` says how a value becomes a payload (`shapes.py`, `encoding.py` and `decoding.py` are its
parts), `kinds.py` which class is stored under which kind. `reading.py` and `queries.py` read; `verify.py` checks.
`errors.py` says what can go wrong by what the caller must do, `server_state.py` whether waiting for a server helps.

It decides nothing and must never store the public protos: what is stored are the state's own values.
"""
