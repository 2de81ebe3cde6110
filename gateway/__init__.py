"""The web gateway: people in browsers, their places in the lines, and the frames on their way to them.

    browser ═WebSocket═▶ Person ─┬─ Lines ═OpenSession═▶ scheduler      (one stream for all people)
                                 └─ Turn ═Stream═▶ worker               (one stream a turn; frames pass unread)

It holds no policy: who is next, who is limited and why a session ended is told by the scheduler. Read `person.py`
first. `protocol.py` is what browsers speak (docs/web-protocol.md), `lines.py` the way to the scheduler, `turn.py` the
way to a worker, over one of `carriers.py`, on channels that `workers.py` keeps, `app.py` what is served; `program.py`
starts and ends it, `sockets.py` bounds what comes, `measures.py` counts and follows inputs now and then to their
frame; `page.py` serves what `web/` was built to. `dashboard/` is another door: for people with a token of their own,
to whom the scheduler answers; `api/` is the same for their programs. `proxy/` passes requests on to served programs,
`open_inference/` those that come over gRPC, and `job_ports/` those for what jobs listen on. It must not import another
program.
"""
