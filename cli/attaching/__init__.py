"""Typing to a job: what the keyboard or a pipe gives goes up, what the job shows comes down.

`window.py` (which bytes are to be sent, again after a lost connection, and none twice), `escape.py` (`~.` at the
beginning of a line) and `modes.py` (what a program switched on in the terminal) are pure. `terminal.py` and `source.py`
are the descriptors, `feed.py` is the call as something that `following/` can follow. Read `keyboard.py` first: it holds
them together.
"""
