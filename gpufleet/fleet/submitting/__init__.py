"""From options to the request that submits a job, and back to the line that would submit it again.

Read `job_options.py` (the table of what may be said, and which field each option sets), `option_kinds.py` (how a kind
of value is read and shown), then `job_spec.py` and `requests.py`. Files that go along: `input_files.py`,
`input_folder.py`, `uploading.py` and, where nodes see them anyway, `sharing.py`.
"""
