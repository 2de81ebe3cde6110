"""`gpuctl bench-model` and `bench-endpoint`: how many requests a model, or any HTTP endpoint, answers, and how fast.

`histogram.py`, `pacing.py`, `sums.py` and `device_sums.py` are the core: they are given times and events, and know
neither clock nor network; what they say is exact but for the histogram, whose relative error has a name. Read
`pacing.py` first, then `load.py`, which sends what it says. `targets.py` is what is asked, `devices.py` what the fleet
says of the GPUs meanwhile, `program.py` runs one row after the other, and `show.py` and `picture.py` draw them.
"""
