"""`canvas`: ink in water. Strokes follow the pointer, clicks stamp and make ripples, keys write, the picture diffuses.

Every frame is computed by the network of `network.py` from the session's state, which stays on the device. `marks.py`
puts inputs into the state; `model.py` is the model, read it first. Nothing here is called but through gpufleet.model.
"""
