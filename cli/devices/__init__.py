"""GPUs, live: `top` of the fleet, `monitor` of this machine or of a node.

`top_program.py` draws what `cli/top_view/` makes; `monitoring.py` watches here, `node_monitor.py` asks the scheduler.
"""
