"""The doctor: walks from this machine to the GPUs, and stops where nothing behind can be seen.

`finding.py` says what a line is; `network.py` looks at name, port and TLS without grpc, because sockets say why and
grpc does not; `cluster.py` judges what the scheduler answers, as functions from messages to findings; `selftest.py`
runs the self-test on every node; `checks.py` puts them in order. Read `checks.py` first.
"""
