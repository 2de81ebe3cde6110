"""The programs as services of a real systemd; read `machine.py` first."""
