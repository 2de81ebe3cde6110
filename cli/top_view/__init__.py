"""What `gpuctl top` shows, as values: no terminal, no clock, no network. `cli/top.py` is the shell around it.

`gpu.py` is a row, `fleet.py` which rows there are and in which order, `keys.py` what was typed, `view.py` what a key
does and which part is seen, `picture.py` the lines. Read `view.py` first.
"""
