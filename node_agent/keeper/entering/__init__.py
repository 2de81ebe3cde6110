"""Other commands in the world of an attempt: its user, namespaces, control group, environment and folder.

    agent: client.py ── enter ──▶ keeper's door ── the connection itself ──▶ supervisor: commands.py ──▶ command
               └─────────── run, signal ▶ · ◀ began, exit; descriptors ───────────┘

The keeper looks for the attempt and hands the connection on; what passes by it then is between the agent and the
supervisor, and what the command reads and writes between the agent and the command. A command lives as long as its
connection, and no longer than its attempt. Read `commands.py` first. As in all of the keeper only `client.py`, which is
the agent's, may use asyncio.
"""
