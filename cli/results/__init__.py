"""What jobs left (`--download`): `files` lists it, `cp` brings it here. Read `command.py` first, then `copying.py`."""
