"""Settings of every program: declared once, read from flags, variables and files, merged, checked and reloaded.

Read `settings.py` (how a program declares its settings), then `merged.py` (which value holds, and where it came from).
Each program's table is its own file: `scheduler_settings.py`, `agent_settings.py`, `gateway_settings.py`,
`cli_settings.py`; `kinds.py` reads and writes single values. `paths.py` says where files live.
"""
