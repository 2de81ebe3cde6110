"""How people come to a token of their own: by a password of a file, or by an OpenID Connect provider.

    password ─▶ throttle ─▶ users file ────────────┐
    code ──────▶ provider ─▶ id token ─▶ claims ───┴─▶ a person: user, role, login ─▶ the core gives a token

Read `ways.py` first. `throttle.py` says how often wrong ones may be tried, `users.py` keeps the file as it is now,
`provider.py` asks the provider over HTTP, `id_tokens.py` checks what it signed, `claims.py` makes a user and a role of
that, and `looking_after.py` ends logins of whom the file or the settings know no longer. Nothing here is stored: a
login that has begun is in the hands of who began it, and one that is done is a token.
"""
