"""What `gpuctl top` shows, as values: no terminal, no clock, no network. The shell around it is
`cli/devices/top_program.py`.

`fleet.py` says what a row is, which rows there are and in which order, `picture.py` the lines. Keys and scrolling are
those of every program that fills the terminal (`full_screen/`). Read `fleet.py` first.
"""
