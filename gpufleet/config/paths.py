"""Where files live. One rule for every account, root too: the XDG base directories.

State (databases, tokens, output, spool, logs) is under `$XDG_STATE_HOME/gpufleet`, else
`~/.local/state/gpufleet`, one folder a program. What people write (contexts, program settings) is under
`$XDG_CONFIG_HOME/gpufleet`, else `~/.config/gpufleet`. `--data` and `--config` name other places.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

LOG_FOLDER = "logs"
PROJECT_FILE = "gpuctl.toml"
"""The CLI's settings of a project, looked for in the current folder only."""


def state_dir(program: str, environment: Mapping[str, str] = os.environ) -> Path:
    """The default data folder of a program: `scheduler`, `agent` or `gateway`."""
    return _base("XDG_STATE_HOME", ".local/state", environment) / program


def config_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of what people write by hand."""
    return _base("XDG_CONFIG_HOME", ".config", environment)


def program_config_file(program: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Where a program looks for its settings without `--config`; it need not exist."""
    return config_dir(environment) / f"{program}.toml"


def contexts_file(environment: Mapping[str, str] = os.environ) -> Path:
    """The CLI's contexts of this account; it need not exist."""
    return config_dir(environment) / "contexts.toml"


def log_file(data: Path, program: str) -> Path:
    """The log of a program in its data folder."""
    return data / LOG_FOLDER / f"{program}.log"


def _base(variable: str, fallback: str, environment: Mapping[str, str]) -> Path:
    given = environment.get(variable, "")
    if given.startswith("/"):  # the XDG rule: a relative value is to be ignored
        return Path(given) / "gpufleet"
    home = environment.get("HOME") or str(Path.home())
    return Path(home) / fallback / "gpufleet"
