"""What gateway and worker must hold alike of a live session: `inputs.py`, the limits of a person's inputs."""
