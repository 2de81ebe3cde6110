"""What a running job has inside, from here: its ports at this machine's loopback address, commands in it, and ssh.

Read `ports.py` (what is typed, and where this machine listens), then `forwarding.py` (what becomes of a connection).
Of commands read `executing.py`; of ssh, which is such a command, `ssh_server.py` (what the job runs) and `ssh_keys.py`.
"""
