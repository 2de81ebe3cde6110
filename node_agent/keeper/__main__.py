"""Starts a keeper: `python -P -X utf8 -m <this package> --dir STATE_DIR [--id ID] [--build TEXT]`.

Returns when the keeper listens, in a process and session of its own that belong to nobody, or says on stderr
why not.
"""

import os
import sys

from .life import EXIT_FAILED, READY, live

EXIT_USAGE = 2


def main(arguments: list[str]) -> int:
    """Fork the keeper off and wait until it is ready."""
    options = dict(zip(arguments[::2], arguments[1::2], strict=False))
    if len(arguments) % 2 or not set(options) <= {"--dir", "--id", "--build"} or "--dir" not in options:
        print("usage: --dir STATE_DIR [--id ID] [--build TEXT]", file=sys.stderr)
        return EXIT_USAGE
    keeper_id = options.get("--id") or os.urandom(6).hex()
    ready_fd, tell_fd = os.pipe2(os.O_CLOEXEC)
    if os.fork() == 0:
        os.setsid()
        live(options["--dir"], keeper_id, options.get("--build", ""), tell_fd)
    os.close(tell_fd)
    with os.fdopen(ready_fd, "rb") as file:
        said = file.read()
    if said == READY:
        return 0
    code, _, reason = said.partition(b" ")
    print(f"keeper: {os.fsdecode(reason) or 'it died before it was ready'}", file=sys.stderr)
    return int(code or EXIT_FAILED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
