"""What the scheduler tells of itself and its fleet to OpenTelemetry and Prometheus. Read `measures.py` first.

`measures.py` is told by the engine what happens, `fleet.py` counts what there is when somebody collects, `devices.py`
takes the newest samples of all devices for a page, and `page.py` has a process of its own (`rendering.py`) write them:
a page of 8,000 devices is a second's work, and the event loop must not stand still for it. Nothing here decides
anything or changes the state, and without OTEL_ variables and metrics.port nothing here runs.
"""
