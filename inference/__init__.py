"""The inference worker: holds a model on its devices and serves live sessions and single predictions.

Nothing of it is built yet. `core/` will hold its decisions as pure functions (input filter, pacing, epochs); around it
the worker shell, the runtimes and the models. It will dial in to the scheduler as agents do, take its policy from
there, and never import another program.
"""
