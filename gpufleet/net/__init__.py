"""How programs find and reach each other: addresses, gRPC channels, listening, TLS, and errors on the wire.

Read `channel.py` first: the one place that says how programs of this project talk.
"""
