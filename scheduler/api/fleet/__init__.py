"""Nodes and devices: the NodeAgent service that agents dial, and the calls of people who look at machines.

Read `agents.py` (the NodeAgent service), `nodes.py` (nodes, tokens, the server), `device_watch.py` (devices, live).
"""
