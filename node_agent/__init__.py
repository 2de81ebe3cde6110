"""The node agent: one per node, it dials the scheduler, reports the node, and carries out what is decided.

Read `core/duties.py` first: what the agent decides. Then `agent.py`: what is connected with what. `core/` decides
(duties, delivery, uploads, expectations, and what the keepers decide); all else only carries out:

    options.py identity.py __main__.py   how it starts: flags and settings, the data folder, the program
    link.py heartbeat.py output.py       the scheduler: dial and register, reports and commands, output
    attempts.py launch.py environment.py what is done with attempts
    files/                               files that go along with jobs, and what they leave
    isolation/ control_groups/           as whom jobs run, and within what
    inside/                              ports of running jobs, for who dials them from elsewhere
    ports.py                             where rank 0 of a gang will listen for the others
    keeping.py keeper/ spool/            the keeper processes, which own the jobs and go on without the agent
    notices.py notice_records.py         what a job's --notify hears of its course
    notice_delivery.py notice_command.py how a notice reaches its command or URL
    machine.py usage.py                  the machine: facts, samples, what jobs use, by which address others reach it
    wire.py                              the only module that knows both the contract's messages and the values
    report_log.py                        what the agent's own log says of attempts: a line a second in a flood
    program_log.py streams.py

The devices themselves, GPUs and their counters, are read by `gpufleet.devices`.

What never happens here: a decision about which job runs where, an import of another program, output deleted that the
scheduler has not synced, an end reported before every process of the attempt is dead.
"""
