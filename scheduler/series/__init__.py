"""Series of samples, in a file of their own: they never share the commit path, and nothing is decided by them.

Read `attempts.py`: what devices did in the course of each attempt, as its node told it at the end. What cannot be kept
is logged and given up: a disk that is full costs pictures and no job. Histories of nodes and users are not built yet.
"""
