"""How a parameter shows in help: on one line, by the words that are typed."""

from __future__ import annotations

from typing import Any


def help_line(parameter: Any) -> tuple[str, str] | None:
    """What help shows of a parameter: its names with the value's, and its sentence; None when it is hidden."""
    if parameter.hidden:
        return None
    if parameter.param_type_name == "argument":
        return parameter.metavar or parameter.name.upper(), parameter.help or ""
    names = ", ".join(sorted(parameter.opts, key=len))
    if parameter.secondary_opts:
        names += " / " + ", ".join(parameter.secondary_opts)
    if not parameter.is_flag:
        names += " " + (parameter.metavar or parameter.name.upper())
    return names, parameter.help or ""
