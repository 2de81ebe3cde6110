"""Control groups of Linux: what keeps an attempt within the memory, CPUs and processes that it was given.

Read `group.py` first: one attempt's group, from its making to what it counted. `kept.py` has all of a keeper's,
`finding.py` looks where the agent of a node can make any, and `files.py` knows how both versions call things.

Nothing here decides what an attempt is given, and nothing may import more than the standard library and the core: the
keeper loads it.
"""
