"""Files that people uploaded for their jobs: stored by user and SHA-256, for the jobs of that user alone.

Read `store.py` first: where the bytes are, what is checked, what a crash leaves. Whole files are in a place of
`backends/`, the data folder or another one or an object store, seen through `place.py`; `upkeep.py` looks after one
that is far away. `receiving.py` takes files as a stream brings them, `on_disk.py` is what a disk has of them.
`opening.py` makes the store of the settings, and says which files jobs need. What a user has uploaded is nobody else's
to see: the same bytes of another are stored a second time, and whether they are there is told to their owner alone.
"""
