"""Importing this keeps gRPC's fork handlers out of a program: its `__main__` does, before anything imports grpc.

uvloop starts programs by fork(2), which calls gRPC's handlers in the child, and while other threads speak through gRPC
these end the child by SIGSEGV or SIGABRT before it is the program that was asked for (asyncio starts programs by
vfork(2), which calls none). No program of ours goes on with gRPC in a forked child, which is all the handlers are for.
gRPC reads the variable when it is imported, so it is set by the import of a module and not by a call.
"""

from __future__ import annotations

import os

FORK_HANDLERS_VARIABLE = "GRPC_ENABLE_FORK_SUPPORT"

os.environ.setdefault(FORK_HANDLERS_VARIABLE, "false")
