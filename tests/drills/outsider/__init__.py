"""A checker that knows gpufleet only from outside: from what `gpuctl` prints, and from files that its own jobs wrote.

A process of its own beside a drill: two users and an admin, each with a token. Nothing here imports anything of
gpufleet, nor of the rest of the drill (a test holds it), so that no mistake is shared. Read `judge.py` first: what must
hold.
"""
