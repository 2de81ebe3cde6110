"""What people reach inside running jobs from elsewhere: ports of theirs, and commands of their own beside the job's.

    scheduler ── OpenPortCommand ──▶ forwarding.py ── CarryPort ──▶ scheduler
                                          └── 127.0.0.1:PORT ──▶ a process of the job
    scheduler ── OpenExecCommand ──▶ commands.py ─── CarryExec ──▶ scheduler
                                          └── world.py ──▶ another command in the job's world

Read `forwarding.py` first. `listening.py` says whose a port is: what another job or the node itself listens on is never
connected to, whoever asks.
"""
