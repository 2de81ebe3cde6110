"""Typing to a job: what the keyboard or a pipe gives goes up, what the job shows comes down.

`window.py` (which bytes are to be sent, again after a lost connection, and none twice) and `escape.py` (`~.` at the
beginning of a line, and what a program switched on in the terminal) are pure. `terminal.py` has the descriptors. Read
`keyboard.py` first: it holds them together, and has the call as something that `following/` can follow.
"""
