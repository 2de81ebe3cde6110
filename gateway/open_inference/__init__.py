"""The Open Inference Protocol over gRPC: what the proxy serves over HTTP, for clients that speak the protocol so.

    client ── gRPC ─▶ Server ─▶ OpenInference ─▶ a request of HTTP ─▶ Proxy (gateway/proxy) ─▶ replica

A call becomes a request to the program that it names, and goes the way of every other one: who may, which replica, how
long it waits and what is counted is the proxy's matter. Read `service.py` first: the calls. `requests.py` and
`answers.py` are the tensors on their way, `statuses.py` says which code stands for which status, `asking.py` is one
request and its answer, `streaming.py` many of them on one call, `room.py` bounds what is held meanwhile, and
`server.py` listens. Nothing here chooses a replica, and nothing of a tensor is looked at.
"""
