"""Jobs that are to be: `submit`, `run`, `shell`, `attach`, and whether there is room (`check`, `estimate`).

What may be typed, and the request that comes of it, is the library's: gpufleet/fleet/submitting. Read `submit.py`
first.
"""
