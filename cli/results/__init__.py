"""What jobs left (`--download`): `files` lists it, `cp` brings it here; `keep` stores what a job keeps (`--keep`).

Read `command.py` first, then `copying.py`.
"""
