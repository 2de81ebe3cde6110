"""What the agent and the keeper of a node decide, as values: no clock, no file, no process.

The agent: read `duties.py` first, what it does about each order and each change; `actions.py` holds what goes in and
out. Then `commands.py` (what the scheduler can ask, and what comes too late), `delivery.py` (numbers, acknowledgements,
repetitions), `inventory.py` (what the node knows), `expectations.py` (what a launch expects of devices), `uploads.py`
(which output goes up next) and `environment.py` (what a process finds).

The keeper: read `attempt.py` first, what it must do next with one attempt, and when that is over. Then `fence.py`
(how long a node may go on without its scheduler), `offsets.py` (which spooled bytes may be sent, kept, deleted),
`adoption.py` (what a launch, a verdict or an old record means for what the node already holds) and `launch.py` (a
launch and what is wrong with it). `outcome.py` holds the values they share; what the scheduler knows as
well, such as the key of a rank and why it is stopped, is in `gpufleet.jobs.runs`.

Time is an integer count of microseconds of CLOCK_BOOTTIME, given by the caller. This package imports the
standard library, `gpufleet.jobs.runs` and itself only, and no clock, randomness, operating system or logging: the
simulator runs it as it is.
"""
