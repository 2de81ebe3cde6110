"""What a running job has inside, from here: its ports at this machine's loopback address.

Read `ports.py` (what is typed, and where this machine listens), then `forwarding.py` (what becomes of a connection).
"""
