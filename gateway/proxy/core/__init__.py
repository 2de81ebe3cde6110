"""What the proxy decides, as values: which replica a request gets, who waits, and which headers pass.

Nothing here reads a clock, a socket or a file; times are seconds of one clock and come from outside. Read `headers.py`
first: what a program may not do to the other people of a gateway stands there.
"""
