"""The inference worker: holds a model on its device and serves live sessions. It takes all policy from the scheduler.

Read `core/inputs.py` and `core/turns.py` first: what the worker decides. `core/` decides; all else carries out:

    __main__.py options.py program.py    how it starts: flags, server, line to the scheduler
    worker.py turning.py                 what it holds: the model, the turns, and what it says of itself
    stepping.py loading.py               the model's own thread, and how a model is found
    sending.py encoding.py               frames: paced, encoded off the loop, only when they show something new
    service.py streaming.py wire.py      what is served by gRPC and on the local socket; messages and values
    last_words.py                        why it cannot even begin, told to the scheduler
    joining.py link.py                   the scheduler: where to be reached, hello, reports, what to expect and to end
    models/                              test-pattern and canvas
    signals.py                           what SIGTERM and SIGINT do
    http_service/                        a program with an HTTP port in place of a model: no frames, no turns
    predict/                             such a program of our own: a class that answers requests, in batches

A frame's way: stepping (model's thread) → sending (encoder thread) → service (event loop) → client, whose sign that
it was shown gives credit for the next one.

What never happens here: a call into the model on the event loop, a decision about who has a turn, an import of another
program, an interesting input that is dropped, a frame that waits in a queue.
"""
