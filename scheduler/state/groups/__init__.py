"""Groups of users: who is in them, what they may have at once and in a week, and what they have used.

A job keeps the id of its group, so that a group which is renamed goes on and one that is removed is known by name.
Read `group.py` first. Nothing here is decided: that is in `core/groups.py`, and what follows from it for the order and
the caps is in `policy/groups/`.
"""
