"""Live sessions: frames on their way to a person, lines of people, and a worker alone.

`people.py` starts the programs and holds the people, `chain.py` is the floor of a frame's way; each other file is a
group of rows or a part of one.
"""
