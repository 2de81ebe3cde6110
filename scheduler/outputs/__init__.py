"""What jobs printed: stored by offset, bounded per attempt, durable up to the synced offset.

Read `layout.py` first: which bytes of an attempt are kept (the first ones, and the last ones) and which give way; it
is pure. `times.py` and `sums.py` are pure, too: when the bytes arrived, and their checksums. `segmented.py` is the
output store itself, over a shelf (`segment_store.py`) that holds the bytes: `files.py` (files in the data folder, with
`file_sums.py` for what is beside them) or `rows.py` (rows on PostgreSQL). `retention.py` says which jobs' output is old
or too much. `opening.py` picks the shelf, `errors.py` says what can go wrong.

Nothing here knows what the bytes mean, and nothing is ever kept in SQLite.
"""
