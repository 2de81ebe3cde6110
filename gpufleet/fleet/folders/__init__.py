"""Folders that go along with a job (`--upload`): what is in one, how it is cut, and what of it is sent.

Read `preparing.py` first: it goes from a folder to its manifest. `ignoring.py` says what stays here, by files that
`git_excludes.py` finds, too; `scanning.py` says what there is, `ignored.py` counts what stays here,
`known_chunks.py` remembers the digests of what did not change, `sending.py` uploads what the scheduler lacks.
Nothing here decides about jobs, and no file is read that is not sent.
"""
