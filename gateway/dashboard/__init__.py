"""What the dashboard in a browser asks for: a login, calls of the scheduler, and streams of what changes.

    browser ── cookie ─▶ guard ─▶ calls  ─▶ scheduler          (JSON there and back, with the person's own token)
                              └─▶ events ═▶ scheduler          (over one WebSocket a page, or as server-sent events)

Nothing is decided here: the scheduler's roles say who may do what. Read `serving.py` first. `logins.py` lets people in
by a token, a password or the provider, and out; `login.py` seals a token into a cookie that any gateway of the fleet
opens, `provider_login.py` a login whose person is at the provider's page. `guard.py` says which requests are answered
at all, `bounds.py` how many, `calls.py` passes on what the table of `api/` allows, `streams.py` carries all streams of
a page, and `streamed.py` is one as an answer of its own.
"""
