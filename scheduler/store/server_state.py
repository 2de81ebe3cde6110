"""What keeps a PostgreSQL server from letting this program in, and whether waiting helps.

It is judged by what the server's protocol says and by the resolver's codes, never by the words of an error: those are
in the language of the server.
"""

import socket
from collections.abc import Iterator
from enum import Enum
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from .opening import parse_url
from .postgres import connect_arguments

APPLICATION = "gpufleet waits"
"""What its connections are named by."""

PROBE_SECONDS_MAX = 2
"""How long one server may take to say how it is."""

CONNECTIONS_REFUSED_MAX = 2
"""A server that lets people in has refused this account when it refused so often: the first time it may have been
starting, and have come up before it was asked whether it is."""

_IS_READ_ONLY = b"SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean"


class ServerState(Enum):
    """How the servers of a URL are, in words that go on from "the database"."""

    WRITABLE = "answers and takes writes"
    READ_ONLY = "answers, and takes no writes yet"
    STARTING = "is starting or recovering, and lets nobody in yet"
    SILENT = "does not answer"
    UNRESOLVED = "has a name that cannot be looked up now"
    UNKNOWN = "has a name that nobody knows"
    REFUSING = "refuses: its account, its password, its name, or what it asks of a connection is wrong"

    @property
    def may_pass(self) -> bool:
        """Whether it may be otherwise without anybody changing a setting."""
        return self in (ServerState.READ_ONLY, ServerState.STARTING, ServerState.SILENT, ServerState.UNRESOLVED)


_WORST_FIRST = (
    ServerState.REFUSING,
    ServerState.WRITABLE,
    ServerState.READ_ONLY,
    ServerState.STARTING,
    ServerState.SILENT,
    ServerState.UNRESOLVED,
    ServerState.UNKNOWN,
)
"""Which of several servers is told of: the one that says most of what the next try will find."""


def server_state(url: str) -> ServerState:
    """How the servers at a URL of PostgreSQL are now. Errors: StoreUrlInvalid."""
    states = _states(url)
    return next(each for each in _WORST_FIRST if each in states)


def takes_writes_nowhere(url: str) -> bool:
    """Whether each server answers, and says that it takes no writes: then it is so for everybody.

    One that is silent may be so for this machine alone. Errors: StoreUrlInvalid.
    """
    return _states(url) <= {ServerState.READ_ONLY, ServerState.STARTING}


def _states(url: str) -> set[ServerState]:
    arguments = connect_arguments(parse_url(url), APPLICATION) | {"connect_timeout": PROBE_SECONDS_MAX}
    arguments.pop("target_session_attrs", None)  # each is asked for itself
    return {_state(each) for each in _each_server(arguments)}


def _each_server(arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The arguments of a connection to each of several servers, as libpq counts them off."""
    hosts = str(arguments.get("host") or "").split(",")
    ports = str(arguments.get("port") or "").split(",")
    for number, host in enumerate(hosts):
        own = {"host": host or None, "port": ports[number] if len(ports) == len(hosts) else ports[0] or None}
        yield {name: value for name, value in (arguments | own).items() if value is not None}


def _state(arguments: dict[str, Any]) -> ServerState:
    host = str(arguments.get("host") or "")
    if host and host[0] not in "/@" and "hostaddr" not in arguments:
        try:
            socket.getaddrinfo(host, None)
        except socket.gaierror as problem:
            return ServerState.UNRESOLVED if problem.errno == socket.EAI_AGAIN else ServerState.UNKNOWN
        except UnicodeError:
            return ServerState.UNKNOWN
    for _ in range(CONNECTIONS_REFUSED_MAX):
        try:
            with psycopg.connect(**arguments, autocommit=True) as connection:
                found = connection.execute(_IS_READ_ONLY).fetchone()
            return ServerState.READ_ONLY if found == (True,) else ServerState.WRITABLE
        except psycopg.Error:
            pass
        match pq.PGconn.ping(make_conninfo(**arguments).encode()):
            case pq.Ping.REJECT:
                return ServerState.STARTING
            case pq.Ping.NO_RESPONSE:
                return ServerState.SILENT
    return ServerState.REFUSING
