"""What a running job has inside, from here: its ports at this machine's loopback address, commands in it, and ssh.

What other programs do as well lies in gpufleet/fleet/inside: ports, and what becomes of a connection. Of ports read
`staying.py`, of commands `executing.py`; of ssh, which is such a command, `entering_by_ssh.py` (who answers it),
`ssh_server.py` (what the job runs), `ssh_sessions.py` (what ssh is given where nothing there answers), `ssh_keys.py`.
"""
