"""What a model computes with: torch, ONNX Runtime and its providers, each believed only once it has computed.

`probe.py` is the file to read first: what an interpreter has, tried for real, as one short program of the standard
library that any interpreter can run; `looking.py` runs it in processes of its own, within a time. `facts.py` says what
this process has loaded and on which device; `drivers.py` asks a GPU's driver for its name, memory and version.
gpufleet/onnx.py is what model classes use.

What never happens here: an import of torch or ONNX Runtime that nobody asked for, a driver that is believed before it
has computed, or a wait without a bound.
"""
