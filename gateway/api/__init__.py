"""The HTTP API: what `gpuctl` does, a program does with a token and JSON, at `/api/v1`.

    program ── Bearer ─▶ serving ─┬─ table: which call of the scheduler a path is
                                  ├─ requests: path, query and body become its request, or a refusal of a field
                                  └─▶ scheduler, with the caller's own token ─▶ JSON, lines of JSON, or bytes

Read `table.py` first: one row a path, and each call of the contract is in it or left out with a reason. Nothing is
decided here, and no right of the gateway is lent: the scheduler's roles say who may do what. `schemas.py` and
`openapi.py` tell the same in OpenAPI, from the contract's descriptors and comments. Who asks, and how often, is looked
at in `dashboard/`, whose page makes its calls by the same table.
"""
