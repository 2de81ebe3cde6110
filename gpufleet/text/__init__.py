"""Words as people type and read them: durations and sizes (`units.py`), and what a typo meant (`spelling.py`)."""
