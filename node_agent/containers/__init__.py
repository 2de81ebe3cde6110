"""Jobs in containers, by an engine's Docker API (Docker Engine, or Podman's service): docs/containers.md.

    engine.py      the engine of this machine: found, asked by its SDK, its refusals in our words
    engine_probe.py one container of the agent's own, to see whether the engine starts any
    making.py      what a container is made of: pure, from a launch to the engine's words
    mounts.py      which folders of the machine a job may be shown
    images.py      images: one pull at a time, and nobody's private one for others
    pulling.py     how far a pull is, in few words: pure
    running.py     the process that runs one
    served.py      a replica of a served program: the worker before it
    containers.py  all of it for an attempt, and what nobody has swept

Read `containers.py` first. The keeper then starts a runner as the attempt's process, and ends the container with it
(`keeper/containers/`). No job ever has the engine's socket: who has that is root.
"""
