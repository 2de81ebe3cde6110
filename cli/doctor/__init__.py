"""The doctor: walks from this machine to the GPUs, and stops where nothing behind can be seen.

`finding.py` says what a line is; `agent.py` looks at this machine's own agent; `network.py` looks at name and port and
`encryption.py` at TLS without grpc, because sockets say why and grpc does not; `cluster.py` judges what the scheduler
answers, as functions from messages to findings, and compares the nodes; `selftest.py` runs the self-test on every node;
`bundle.py` packs all of it, with `redaction.py` for what nobody else should read; `checks.py` puts them in order. Read
`checks.py` first.
"""
