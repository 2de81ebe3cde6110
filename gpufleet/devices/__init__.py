"""The devices of this machine and what they are doing: NVIDIA, AMD, virtual, or none.

`device.py` is the file to read first: the values (`Device`, `DeviceSample`) and the two ports.

    driver library ── DeviceReader (may hang) ── Sampler (threads, bounds, ages) ── DeviceSource ── agent, monitor
                      nvml.py, amd.py            sampler.py                         list, sample, fresh

`opening.py` chooses what a machine has; `virtual.py` needs no driver; `nvml_trouble.py` says
which errors make a device unhealthy; `host.py` counts CPUs and memory.
`tally.py` sums up what was read, `kept_tallies.py` writes it as JSON for the next start of an agent, and
`process_tree.py` reads what a process and all below it use, and tells whose one is.

What never happens here: deciding who gets a device, talking to the scheduler, an exception for a missing
counter, or a driver call on the caller's thread. Nothing is imported from a vendor's package before a reader
is opened.
"""
