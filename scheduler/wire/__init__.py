"""Values and protos: requests and reports become values (`validate*.py`), values become answers (`convert*.py`).

Read `validate.py` and `convert_jobs.py`. A wrong field raises with its path and what to type next; nothing is decided
here, and nothing here knows the engine. What a spec holds that takes more than a line to check has a file of its own:
`array_spec.py`, `notify_targets.py`, `limit_rules.py`, `output_file.py`, `process_settings.py`, `input_files.py`;
`alike_specs.py` checks equal specs once.
"""
