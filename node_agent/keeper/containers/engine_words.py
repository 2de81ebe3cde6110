"""What engines mean: why a container is not made or does not start they say in words alone.

The words are those of Docker Engine, containerd, runc, crun, Podman and NVIDIA's container toolkit. A name that
somebody chose stands among them (a program, an image, a path), so that no single word counts: nvidia-smi is a program.
"""

from __future__ import annotations

import re

OF_GPUS = re.compile(
    r"nvidia-container|nvidia-ctk|nvidia\.com/gpu|libnvidia-ml|failed to initialize nvml"
    r"|could not select device driver|(?:un(?:resolvable|known)|setting up|injecting) cdi|cdi device injection",
    re.IGNORECASE,
)
"""It cannot give GPUs: there is no toolkit, it does not find its driver, or nothing describes these GPUs."""

OF_A_DRIVER = re.compile(r"requirement error|unsatisfied condition|requirements not met", re.IGNORECASE)
"""The image asks for a newer driver (`NVIDIA_REQUIRE_CUDA`): the toolkit compares."""

OF_CONTROL_GROUPS = re.compile(r"(?:creating|create|apply|applying|setting) [\w -]*cgroup", re.IGNORECASE)
"""It could not make the container's control group, which it may tell with `No such file or directory`."""

OF_A_PROGRAM = re.compile(r"executable file|no such file or directory|not found", re.IGNORECASE)
"""The image lacks the program, or what that needs to run."""

OF_WHAT_IS_NO_PROGRAM = re.compile(r"permission denied|exec format error|is a directory", re.IGNORECASE)
"""It is there, and cannot be run."""
