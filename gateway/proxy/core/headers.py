"""Which headers pass: what a program learns of a request, and what its answer may say to a browser.

Programs do not trust each other, nor does the dashboard trust them, and under /m/NAME/ all of them share one origin:

to the program                                  | why
------------------------------------------------|--------------------------------------------------------------------
what Connection names, and other hop-by-hop     | they are about one connection (RFC 9110, 7.6.1)
Expect                                          | the gateway itself asks for the body
X-Forwarded-*, X-Real-Ip, Forwarded, Gpufleet-*,| said by the gateway; a client's own are dropped, also with "_" for
traceparent                                     | "-", which servers of WSGI take for the same. A trace goes on
Authorization: Bearer gf_…, cookies gpufleet_*, | a program could act with them as the person who uses it
and whatever else holds a whole token           |

to the browser                                  | why
------------------------------------------------|--------------------------------------------------------------------
Content-Security-Policy: sandbox … is added     | the page gets an origin of its own: it cannot act as the dashboard's
                                                | pages, nor as those of other programs. The program's own one stays.
                                                | At a host of its own a page that knows who looks at it is in nobody's
                                                | frame instead
Set-Cookie                                      | Domain is dropped and Path lies under the program's; names of the
                                                | gateway, names bound to the host and nameless ones are dropped
Location                                        | an absolute path of the program's own lies under its prefix
Clear-Site-Data, Service-Worker-Allowed,        | they are about the whole origin or the whole host
Strict-Transport-Security, Alt-Svc, Report-To … |
Date, Server                                    | said by the gateway
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Final, NamedTuple

Header = tuple[bytes, bytes]

SANDBOX: Final = b"sandbox allow-scripts allow-forms allow-downloads allow-popups allow-modals"
IN_NO_OTHER_FRAME: Final = b"frame-ancestors 'self'"

HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-connection proxy-authenticate proxy-authorization te trailer transfer-encoding "
    b"upgrade".split()
)

_SAID_BY_US = frozenset(b"forwarded x-real-ip traceparent expect host".split())
_SAID_BY_US_PREFIXES = (b"x-forwarded-", b"gpufleet-")

_OF_THE_ORIGIN = frozenset(
    b"clear-site-data service-worker-allowed strict-transport-security alt-svc nel report-to reporting-endpoints "
    b"public-key-pins public-key-pins-report-only expect-ct accept-ch critical-ch origin-agent-cluster date "
    b"server".split()
)

_NOT_FOR_BROWSERS = HOP_BY_HOP | _OF_THE_ORIGIN

_TOKEN = re.compile(rb"gf_[A-Za-z0-9_-]{43}")
_OWN_COOKIES = (b"gpufleet_", b"__host-gpufleet_")
_COOKIES_OF_THE_HOST = (b"gpufleet_", b"__host-", b"__secure-gpufleet")


class Origin(NamedTuple):
    """What a program is told of a request: where it comes from, and who it is. `prefix` is `/m/NAME`, or empty at a
    host of the program's own. With `own_host` it is told to be called so, and not as the client calls it: Host, Origin
    and Referer say that, since what listens on a loopback address alone takes no other."""

    client: str
    scheme: str
    host: str
    prefix: str
    request_id: str
    traceparent: str
    user: str = ""
    own_host: str = ""


def is_ambiguous(headers: Iterable[Header]) -> bool:
    """Whether two servers could disagree about where the body ends: it is refused."""
    names = [name.lower() for name, _ in headers]
    return b"content-length" in names and b"transfer-encoding" in names


_HOST = re.compile(rb"(?:[0-9A-Za-z._-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")


def is_host(value: bytes) -> bool:
    """Whether a Host header is a name or an address, and maybe a port (RFC 9110, section 7.2); it may be empty.

    In anything else, such as `a@b`, two servers could see different hosts.
    """
    return _HOST.fullmatch(value) is not None


def has_body(headers: Iterable[Header]) -> bool:
    """Whether a request has a body."""
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0 ")) for name, value in headers
    )


def value_of(headers: Iterable[Header], wanted: bytes) -> str:
    """The first header of this name; empty without one."""
    for name, value in headers:
        if name.lower() == wanted:
            return value.decode("latin-1")
    return ""


def to_program(headers: Sequence[Header], origin: Origin) -> list[Header]:
    """The headers that a program gets. Where the body ends is said in one way."""
    dropped = _dropped(HOP_BY_HOP, headers)
    passed: list[Header] = [(b"host", (origin.own_host or origin.host).encode("latin-1"))]
    is_chunked = False
    for name, value in headers:
        name = name.lower()
        is_chunked = is_chunked or name == b"transfer-encoding"
        alike = name.replace(b"_", b"-")
        if alike in dropped or alike in _SAID_BY_US or alike.startswith(_SAID_BY_US_PREFIXES):
            continue
        if alike == b"cookie":
            value = _cookies_of_program(value)
            if not value:
                continue
        elif (alike == b"authorization" and _is_bearer_of_ours(value)) or _holds_token(value):
            continue
        elif origin.own_host and alike in (b"origin", b"referer"):
            value = _as_it_is_called(value, origin)
        passed.append((name, value))
    if is_chunked:
        passed = [each for each in passed if each[0] != b"content-length"]
        passed.append((b"transfer-encoding", b"chunked"))
    return passed + _said_of(origin)


def as_it_is(headers: Iterable[Header]) -> list[Header]:
    """The same, with an answer asked for that is not compressed: it is read along as it passes."""
    return [*(each for each in headers if each[0] != b"accept-encoding"), (b"accept-encoding", b"identity")]


def of_web_socket(headers: Iterable[Header]) -> list[Header]:
    """Those of a WebSocket's handshake that are not said anew on each connection."""
    framing = (b"content-length", b"transfer-encoding")
    return [each for each in headers if each[0] not in framing and not each[0].startswith(b"sec-websocket-")]


def to_browser(headers: Sequence[Header], origin: Origin) -> list[Header]:
    """The headers of a program's answer that pass, and those that are added."""
    dropped = _dropped(_NOT_FOR_BROWSERS, headers)
    is_chunked = any(name.lower() == b"transfer-encoding" for name, _ in headers)
    passed: list[Header] = []
    for name, value in headers:
        name = name.lower()
        if name in dropped or name.startswith(b"gpufleet-") or (is_chunked and name == b"content-length"):
            continue
        if name == b"location":
            value = _location(value, origin)
        elif name == b"set-cookie":
            value = _set_cookie(value, origin.prefix.encode())
            if not value:
                continue
        passed.append((name, value))
    if origin.prefix:
        passed.append((b"content-security-policy", SANDBOX))
    elif origin.user:
        passed.append((b"content-security-policy", IN_NO_OTHER_FRAME))
    passed.append((b"gpufleet-request-id", origin.request_id.encode()))
    return passed


def _dropped(always: frozenset[bytes], headers: Iterable[Header]) -> frozenset[bytes]:
    """The same with what Connection names, but where the body ends: that is nobody's to drop."""
    values = [value for name, value in headers if name.lower() == b"connection"]
    if not values:
        return always
    named = {name.strip().lower() for value in values for name in value.split(b",")}
    return always | (named - {b"content-length", b"host"})


def _said_of(origin: Origin) -> list[Header]:
    node = f'"[{origin.client}]"' if ":" in origin.client else origin.client or "unknown"
    # A quoted string: a host comes from the client and may hold what would end the pair.
    host = origin.host.replace("\\", r"\\").replace('"', r"\"")
    said = (
        (b"x-forwarded-for", origin.client),
        (b"x-forwarded-proto", origin.scheme),
        (b"x-forwarded-host", origin.host),
        (b"x-forwarded-prefix", origin.prefix),
        (b"forwarded", f'for={node};host="{host}";proto={origin.scheme}'),
        (b"gpufleet-request-id", origin.request_id),
        (b"gpufleet-user", origin.user),
        (b"traceparent", origin.traceparent),
    )
    return [(name, value.encode("latin-1", "replace")) for name, value in said if value]


def _as_it_is_called(value: bytes, origin: Origin) -> bytes:
    """An address of the program's own as it knows it; another one stays."""
    ours = f"{origin.scheme}://{origin.host}".encode("latin-1")
    rest = value[len(ours) :]
    if not value.lower().startswith(ours.lower()) or rest[:1] not in (b"", b"/"):
        return value
    if origin.prefix and rest.startswith(origin.prefix.encode() + b"/"):
        rest = rest[len(origin.prefix) :]
    return b"http://" + origin.own_host.encode() + rest


def _is_bearer_of_ours(value: bytes) -> bool:
    scheme, _, token = value.strip().partition(b" ")
    return scheme.lower() == b"bearer" and token.strip().startswith(b"gf_")


def _holds_token(value: bytes) -> bool:
    return b"gf_" in value and _TOKEN.search(value) is not None


def _cookies_of_program(value: bytes) -> bytes:
    pairs = (pair.strip() for pair in value.split(b";"))
    own = (pair for pair in pairs if pair and not pair.lower().startswith(_OWN_COOKIES) and not _holds_token(pair))
    return b"; ".join(own)


def _set_cookie(value: bytes, prefix: bytes) -> bytes:
    """The cookie as one of the program's own; empty for one that it may not set."""
    pair, *attributes = value.split(b";")
    name, equals, _ = pair.partition(b"=")
    name = name.strip().lower()
    if not name or not equals or name.startswith(_COOKIES_OF_THE_HOST):
        return b""
    path, kept = b"/", []
    for attribute in attributes:
        key, _, said = attribute.partition(b"=")
        match key.strip().lower():
            case b"path":
                path = said.strip() if said.strip().startswith(b"/") else b"/"
            case b"domain":
                pass
            case _:
                kept.append(attribute.strip())
    return b"; ".join([pair.strip(), *filter(None, kept), b"Path=" + _under(path, prefix)])


def _location(value: bytes, origin: Origin) -> bytes:
    """Where the program sends a browser; under its prefix, where that is an absolute path of its own."""
    prefix = origin.prefix.encode()
    for scheme, host in product((b"http://", b"https://"), (origin.host, origin.own_host)):
        own = scheme + host.encode("latin-1")
        rest = value[len(own) :]
        if host and value.lower().startswith(own.lower()) and rest[:1] in (b"", b"/", b"?"):
            return _under(rest if rest.startswith(b"/") else b"/" + rest, prefix)
    is_path = value.startswith(b"/") and not value.startswith(b"//")
    return _under(value, prefix) if is_path else value


def _under(path: bytes, prefix: bytes) -> bytes:
    """An absolute path below the prefix; one that lies there already stays as it is."""
    is_there = path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in (b"", b"/", b"?")
    return path if is_there else prefix + path
