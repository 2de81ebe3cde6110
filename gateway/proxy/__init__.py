"""Served programs: requests under /m/NAME/ go to a replica of the program, and its answers come back.

    client ── HTTP, WebSocket ─▶ Proxy ─ who may ─▶ Service ─ which replica, or wait ─▶ Connection ═TCP, TLS═▶ replica
                                                      ▲ WatchWorkers: replicas, keys     ReportRequests ─▶ scheduler

Bodies are streamed in both directions, and nothing of them is kept. How many replicas there are is the scheduler's
matter: it is told how many requests are under way and how many wait. Read `serving.py` first. `access.py` says who may,
`service.py` knows the replicas of one program and its requests, `watching.py` speaks with the scheduler, `upstream.py`
is a connection to a replica, on which `exchange.py` passes a request and its answer (`answer.py`), and `web_socket.py`
passes messages. `lane.py` is the short way of a plain request here, past uvicorn and Starlette, and
`lane_client.py` its client. `statistics.py` asks all replicas of a program what they have computed, and reads their
answers (`whole_answer.py`).
What is decided is in `core/`, without input or output: `choice.py` which replica, `waiting.py` whose turn it is,
`plain_request.py` what is plain, `headers.py` what of a request a program learns, and what of its answer a browser,
`statistics.py` sums of what replicas say.
`openai.py` is another address of the same programs, `/v1`: there a body's field `model` names one. Such a body is held
(`held_bodies.py`), looked through for that name alone (`core/named_model.py`), and passed on as it came.
`hosts.py` is a third one, a host name for each program, at which `handover.py` makes a login of the dashboard's good.
Nothing else may read a body, and nothing may trust what a program says.
"""
