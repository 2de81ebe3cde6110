"""Models for people: `serve` (`serving.py` sees it come up), `models` and `sessions`.

`serve_options.py` has what may be typed, of which `serving.py` makes the request; of a class that
answers requests `predicting.py` makes a program.
"""
