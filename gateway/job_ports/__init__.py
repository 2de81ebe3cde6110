"""Ports of running jobs in a browser: a notebook, a board, a debugger, through scheduler and agent.

    browser ── HTTP, WebSocket ─▶ Ports ─ whose login ─▶ Tunnel ═ForwardPort═▶ scheduler ═▶ agent ─▶ the job's process

Each request and each WebSocket goes by a connection of its own, made with the person's own token: the scheduler says
who may, and writes down who came. Read `serving.py` first. `names.py` says which addresses are ports, `tunnel.py` is
the way to one; how a request passes, and what of it a program and a browser learn, is that of `proxy/`. Nothing may
trust what listens at a port: its page has a host of its own, where it finds no login but the one for this port, or a
sandbox.
"""
