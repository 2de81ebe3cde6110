"""Whom a node's refusal of a launch blames. What is not listed blames the node, which is left out for a while: an agent
may be newer than this scheduler, and a job must not fail for a reason that says nothing about it.
"""

BLAMES_THE_JOB = frozenset(
    {"CWD_MISSING", "COMMAND_NOT_FOUND", "NOT_EXECUTABLE", "ARGV_TOO_LONG", "BAD_REQUEST", "INVALID_LAUNCH"}
)
"""Every node would refuse it: the job ends. That a command cannot be run is refused only while a gang is prepared; a
single rank runs, and ends by it."""

BLAMES_DEVICES = frozenset({"DEVICE_BUSY", "DEVICE_UNHEALTHY"})
"""These devices are left out: those of the samples that come with the refusal, or all that were placed."""

BLAMES_NOBODY = frozenset({"STOPPED_BEFORE_START", "ABORTED"})
"""It was told to stop before it began."""
