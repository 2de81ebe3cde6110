"""The command of a job: a program and its arguments, as long as Linux takes them."""

from collections.abc import Sequence

from gpufleet.errors import Reason, invalid

ARGV_BYTES_MAX = 2_000_000
ARGUMENT_BYTES_MAX = 131_071
"""Linux starts no program with a single argument or variable longer than this (MAX_ARG_STRLEN)."""
UTF8_BYTES_MAX = 4
"""Bytes of a character, at most."""


def check_argv(argv: Sequence[str], path: str, *, may_be_none: bool = False) -> None:
    """Refuse what nothing is started with; `may_be_none` takes none at all. Errors: COMMAND_EMPTY, ARGV_TOO_LONG."""
    if may_be_none and not argv:
        return
    if not argv or not argv[0]:
        raise invalid(path, "is empty", reason=Reason.COMMAND_EMPTY)
    whole = "".join(argv)
    if len(whole) * UTF8_BYTES_MAX <= ARGUMENT_BYTES_MAX and "\0" not in whole:
        return  # as nearly all are
    sizes = [len(argument.encode()) for argument in argv]
    if max(sizes) > ARGUMENT_BYTES_MAX or sum(sizes) > ARGV_BYTES_MAX:
        raise invalid(
            path,
            f"holds {sum(sizes):,} bytes; at most {ARGV_BYTES_MAX:,} in all and {ARGUMENT_BYTES_MAX:,} an argument",
            reason=Reason.ARGV_TOO_LONG,
        )
    for number, argument in enumerate(argv):
        if "\0" in argument:
            raise invalid(f"{path}[{number}]", "holds a NUL byte")
