"""A model that answers requests: an HTTP server that speaks the Open Inference Protocol, run as a served program.

Read `inference/core/batching.py` first: which items are computed together, and when. All else carries out:

    __main__.py options.py     how it starts and ends: flags, the port, the server
    app.py                     paths, bodies, and callers that go away
    predictor.py               what it holds: the batches, who waits for them, the model's state
    loading.py computing.py    a class becomes a model that is warm; its own thread
    requests.py results.py     the protocol: bodies become items, and results an answer
    tensors.py                 datatypes, as JSON and as bytes
    metrics.py describing.py   what was computed, for Prometheus and for Triton's clients; how requests are taken

A request's way: app → requests (event loop) → core/batching → computing (the model's thread) → results → app.

What never happens here: a call into the model on the event loop, an item without exactly one result or error, a wait
without a bound, a word about turns, replicas or tokens: those are the shim's and the gateway's.
"""
