"""The table of commands: its panels are what `gpuctl --help` shows, its modules are loaded when they are needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Entry(NamedTuple):
    """A command of the menu."""

    module: str
    """That of its room which holds a function, or a typer app, of the command's name, with _ for -."""
    summary: str
    """The first line of its help."""


PANELS: Mapping[str, Mapping[str, Entry]] = {
    "Run": {
        "submit": Entry("submitting.submit", "Submit a job and print its id."),
        "run": Entry("submitting.submit", "Run a job and stay with it to its end."),
        "ingest": Entry(
            "submitting.ingest", "Send a file to what takes its type; print the job's id, or the model's answer."
        ),
        "shell": Entry("submitting.attach", "Open a shell on a node, with GPUs if you ask for them."),
        "attach": Entry("submitting.attach", "Come back to a job of gpuctl shell or run -i."),
        "forward": Entry("inside.forward", "Open ports of a running job on this machine."),
        "exec": Entry("inside.exec", "Run another command in a running job."),
        "ssh": Entry("inside.ssh", "Enter a running job with the OpenSSH client."),
        "ssh-config": Entry("inside.ssh", "Show what ssh is to know of running jobs: job-41."),
        "notebook": Entry("submitting.notebook", "Run Jupyter on a node, and open it in your browser."),
    },
    "Look": {
        "queue": Entry("jobs.queue", "Show the jobs in their order, and the nodes below them."),
        "job": Entry("jobs.job", "Show all that is known of a job."),
        "story": Entry("jobs.job", "Tell what happened to a job, oldest first."),
        "logs": Entry("logs.command", "Show what jobs wrote, or a program's own log."),
        "explain": Entry("jobs.job", "Say why a job waits, node by node, and when it may start."),
        "wait": Entry("jobs.wait", "Wait until jobs have ended, and exit with their code."),
        "files": Entry("results.command", "Show what a job left, or has in its folder while it runs."),
        "cp": Entry("results.command", "Copy files of a job here, or into one that runs."),
        "check": Entry("submitting.submit", "Say whether a job would start now, and submit nothing."),
        "stats": Entry("jobs.job", "Show what a job used, or uses so far: GPUs, energy, processor, memory."),
        "monitor": Entry(
            "devices.monitor", "Watch GPUs until Ctrl-C, or while a command runs, and show what was used."
        ),
        "top": Entry("devices.top", "Watch every GPU: load, memory, power, temperature, whose job."),
        "workers": Entry("nodes.workers", "Show both queues, and what each worker runs."),
        "usage": Entry(
            "admin.usage", "Show how much of the GPUs was used, and by whom; or who came to the served models."
        ),
        "history": Entry("jobs.history", "Show what has ended: how, how long it ran and waited, and what it used."),
    },
    "Manage": {
        "cancel": Entry("jobs.change", "Stop jobs: SIGTERM, then SIGKILL when their grace is over."),
        "signal": Entry("jobs.change", "Send a signal to every process of running jobs."),
        "hold": Entry("jobs.change", "Keep waiting jobs from starting until they are released."),
        "release": Entry("jobs.change", "Let held jobs start."),
        "band": Entry("jobs.change", "Move jobs to another band: a higher one goes before a lower one."),
        "update": Entry("jobs.change", "Give jobs that wait or run another time limit, name or band."),
        "requeue": Entry("jobs.change", "Take jobs off their nodes and queue them again."),
        "keep": Entry("results.keeping", "Store now what a running job keeps for its next attempt (--keep)."),
        "secret": Entry("admin.secret", "Set, list and remove secrets, which jobs are given with --secret."),
    },
    "Serve": {
        "serve": Entry("sessions.serve", "Serve a model: the fleet starts its workers, as many as people need."),
        "models": Entry("sessions.models", "Show the models with their lines and workers."),
        "sessions": Entry("sessions.models", "Show who has a turn and who waits."),
        "worker": Entry("admin.programs", "Serve live sessions with a model, by hand."),
        "providers": Entry("sessions.providers", "Show what models can compute with here, tried for real."),
        "infer": Entry("asking.command", "Ask a served model about files, a text or a value."),
        "batch": Entry("batch.command", "Ask a model about every row of a file."),
        "bench-model": Entry("bench_model.command", "Measure how many requests a served model answers, and how fast."),
        "bench-endpoint": Entry(
            "bench_model.command", "Measure how many requests any HTTP endpoint answers, and how fast."
        ),
        "estimate": Entry("submitting.submit", "Say how many GPUs a model needs, and how much memory on each."),
    },
    "Admin": {
        "up": Entry(
            "admin.up", "Start a scheduler, an agent and the page at http://localhost:7860, and stay until Ctrl-C."
        ),
        "down": Entry("admin.up", "Stop what gpuctl up started. Asks before it ends running jobs."),
        "scheduler": Entry("admin.programs", "Be the scheduler: take jobs, place them, keep their output."),
        "agent": Entry("admin.programs", "Be this machine's agent: offer its GPUs and run jobs on them."),
        "gateway": Entry("admin.programs", "Let people in browsers hold sessions with models."),
        "nodes": Entry("nodes.nodes", "Show the nodes with their GPUs; -o wide shows each GPU."),
        "drain": Entry("nodes.nodes", "Give a node no new work; what runs there goes on."),
        "resume": Entry("nodes.nodes", "Give a node work again, and trust its devices again."),
        "login": Entry("logins.login", "Log in with your browser or a password; the token is kept with the context."),
        "logout": Entry("logins.login", "End the login of this context; its token is of no use then."),
        "group": Entry("admin.group", "Group users: caps, shares, a highest band, and who is in each."),
        "token": Entry("admin.token", "Make, list and revoke tokens."),
        "audit": Entry("admin.audit", "Show who called what, on what, from where, and how it ended."),
        "config": Entry("admin.config", "Write, check and show settings; choose a scheduler."),
        "install": Entry(
            "services.command",
            "Install a program as a systemd service: it starts with the machine, and again when it fails.",
        ),
        "uninstall": Entry(
            "services.command", "Stop a service and remove its unit. Its data stays, and what an agent runs goes on."
        ),
        "upgrade": Entry(
            "admin.upgrade",
            "Say what another version would change: the database, settings, and whether the fleet's programs go with "
            "it.",
        ),
        "doctor": Entry("admin.doctor", "Check the way from here to the GPUs, and say how to mend it."),
        "version": Entry("admin.version", "Show the versions of client and server, and whether they differ."),
    },
}
"""Panel → command → what is known of it without loading it."""

MODULES: Mapping[str, str] = {name: entry.module for panel in PANELS.values() for name, entry in panel.items()}

OF_OTHERS: Mapping[str, str] = {
    "ps": "queue",
    "ls": "queue",
    "list": "queue",
    "jobs": "queue",
    "status": "queue",
    "squeue": "queue",
    "qstat": "queue",
    "sbatch": "submit",
    "qsub": "submit",
    "srun": "run",
    "salloc": "shell",
    "port-forward": "forward",
    "tunnel": "forward",
    "jupyter": "notebook",
    "kill": "cancel",
    "stop": "cancel",
    "rm": "cancel",
    "delete": "cancel",
    "scancel": "cancel",
    "qdel": "cancel",
    "why": "explain",
    "describe": "explain",
    "free": "nodes --free",
    "gpus": "nodes --free",
    "gpu": "nodes --free",
    "devices": "nodes --free",
    "info": "nodes",
    "sinfo": "nodes",
    "node": "nodes",
    "nvidia-smi": "top",
    "nvitop": "top",
    "htop": "top",
    "watch": "top",
    "sacct": "history",
    "seff": "stats",
    "sstat": "stats",
    "sreport": "usage",
    "show": "job",
    "scontrol": "job",
    "tail": "logs -f",
    "log": "logs",
    "output": "logs",
    "start": "up",
    "signin": "login",
    "logoff": "logout",
    "whoami": "doctor",
}
"""What other programs call it, or people do: the command that is meant."""
