"""A program that fills the terminal, shows rows, and listens to keys: `top`, `queue -w`.

`view.py` says what was typed, what a key does, which part of the rows is seen and how they are sorted: values without a
terminal. `terminal.py` takes the terminal over and puts it back, `program.py` is the loop around all of it. What the
rows are and how they look is the program's own (`top_view/`, `queue_watch/`). Read `view.py` first.
"""
