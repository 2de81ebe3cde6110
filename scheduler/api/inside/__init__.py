"""The Scheduler service, the part about what people reach inside running jobs: ports, and commands beside the job's.

    person ═ForwardPort═▶ entering.py ── tunnels.py ◀═CarryPort═ agent
    person ═ExecJob═════▶ entering.py ── tunnels.py ◀═CarryExec═ agent

Read `tunnels.py` first: what is asked of an agent, and how bytes pass. `entering.py` has who may, and the calls,
`executing.py` what is a command. Bytes pass as they are, one message at a time, and nothing is kept: HTTP/2 stops each
stream for itself.
"""
