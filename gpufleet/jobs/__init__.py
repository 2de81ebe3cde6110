"""What scheduler, agent and gpuctl must spell alike of a job: its default name, its variables, its `--notify`, and of
each of its runs the key, the input, why it is stopped: read `runs.py` first."""
