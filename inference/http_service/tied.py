"""Becomes a program that ends when the process that started it does. Linux only; run as a file, by its path.

    python -I -S tied.py PARENT REPORT FILES PROGRAM ARG...

PARENT is the pid of who starts it, REPORT the descriptor on which it is told why the program cannot be run, FILES the
program's soft limit of open files. What is set here lasts over the exec, and a parent with threads could not set it
between fork and exec.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
NOT_RUN = 127
"""The status of a program that could not be run, as shells have it."""


def main(parent: str, report: str, files: str, *argv: str) -> int:
    """Answers only when the program cannot be run."""
    import resource  # here: every module of a worker can be loaded on Windows

    report_fd = int(report)
    os.set_inheritable(report_fd, False)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):  # it died before it was asked for
        return NOT_RUN
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(files), hard))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which this interpreter ignores
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)
    except OSError as problem:
        os.write(report_fd, f"{argv[0]}: {problem.strerror}".encode(errors="surrogateescape"))
    return NOT_RUN


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
