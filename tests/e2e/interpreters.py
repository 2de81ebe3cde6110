"""Interpreters that jobs of all accounts can run: an environment's own may be for root's eyes alone."""

from __future__ import annotations

import functools
import subprocess
import sys
import sysconfig
from pathlib import Path

NOBODY = "65534"


class NoInterpreter(Exception):
    """No interpreter of this version can be run, with our packages, by other accounts."""


@functools.cache
def python_of_all() -> str:
    """One of this version that every account may run with our packages, as what isolated jobs run must be."""
    site = sysconfig.get_path("purelib")
    if Path(site).is_relative_to("/tmp"):
        raise NoInterpreter("the environment lies in /tmp, of which an isolated job has its own")
    load = f"import site; site.addsitedir({site!r}); import gpufleet.inference"
    as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "env", "-C", "/"]
    for python in (sys.executable, f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"):
        if subprocess.run([*as_nobody, python, "-P", "-c", load], check=False, capture_output=True).returncode == 0:
            return python
    raise NoInterpreter("no interpreter of this version can be run with our packages by other accounts")
