"""`gpuctl install` and `uninstall`: the programs as systemd services of this machine, or of one account.

Read `units.py` first: what a unit says, from values alone. `systemd.py` asks the systemd of this machine, and
`installing.py` checks, writes, starts, and says what it did. Nothing here starts a program by itself.
"""
