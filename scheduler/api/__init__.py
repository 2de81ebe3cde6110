"""The servicers above the engine: they check, convert, post and wait, and decide nothing.

Read `server.py` (what is served) and `roles.py` (who may call what). The calls stand by subject: `jobs/`, `output/`,
`inside/` (what people reach in running jobs), `fleet/` (nodes, devices, and the NodeAgent service), `sessions/`. Here
is what they share: how calls are answered and refused, tokens of pages, streams that end with their token. Protos
become values, and values protos, in `wire/`.
"""
