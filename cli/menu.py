"""The table of commands: its panels are what `gpuctl --help` shows, its modules are loaded when they are needed."""

from __future__ import annotations

from collections.abc import Mapping

PANELS: Mapping[str, Mapping[str, str]] = {
    "Run": {
        "submit": "submit",
        "run": "submit",
        "shell": "attach",
        "attach": "attach",
    },
    "Look": {
        "queue": "queue",
        "job": "job",
        "story": "job",
        "logs": "logs",
        "explain": "job",
        "wait": "wait",
        "check": "check",
        "stats": "stats",
        "monitor": "monitor",
        "top": "top",
        "usage": "usage",
    },
    "Manage": {
        "cancel": "change",
        "signal": "change",
        "hold": "change",
        "release": "change",
        "band": "change",
        "requeue": "change",
    },
    "Serve": {
        "serve": "serve",
        "models": "models",
        "sessions": "models",
        "worker": "programs",
        "estimate": "estimate",
    },
    "Admin": {
        "up": "up",
        "down": "up",
        "scheduler": "programs",
        "agent": "programs",
        "gateway": "programs",
        "nodes": "nodes",
        "drain": "nodes",
        "resume": "nodes",
        "token": "token",
        "config": "config",
        "doctor": "doctor",
        "version": "version",
    },
}
"""Panel → command → the module of `commands/` that holds a function, or a typer app, of that name."""

MODULES: Mapping[str, str] = {name: module for panel in PANELS.values() for name, module in panel.items()}
