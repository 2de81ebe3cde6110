"""Importing this has gRPC resolve names by the system's resolver: a program does it before anything imports grpc.

gRPC's own resolver asks the name servers even where /etc/hosts knows the name, for the address of the other family and
for settings that nobody publishes. With a name server that does not answer, each connection waits for seconds.
getaddrinfo(3) does what the rest of the machine does. gRPC reads the variable when it is imported, so it is set by the
import of a module and not by a call.
"""

from __future__ import annotations

import os

from gpufleet.net.grpc_import import BY_SYSTEM, RESOLVER_VARIABLE

os.environ.setdefault(RESOLVER_VARIABLE, BY_SYSTEM)
