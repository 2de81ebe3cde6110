"""What each release left: a store, what its programs said to each other, and its contracts; read `keep.py` first.

A folder a release, `0.1.0` first: `store.tar.gz` (the scheduler's data folder at a moment when it was killed),
`wire.jsonl.gz` (every message of its programs, before that moment and after), `protos.binpb.gz` (its contracts, for
`buf breaking` and for reading its messages), `facts.json` (what was true of the store), `keeper.jsonl.gz` (what an
agent and its keeper said to each other: `keeper_talk.py`), `commit` (where its programs are in the history). They are
never made again for a release that is out: whoever changes the programs changes what goes on with these files.
"""
