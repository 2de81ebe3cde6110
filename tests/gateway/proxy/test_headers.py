"""Which headers pass between a client and a program: values only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.proxy.core.headers import (
    HOP_BY_HOP,
    SANDBOX,
    Header,
    Origin,
    has_body,
    is_ambiguous,
    is_host,
    to_browser,
    to_program,
)

ORIGIN = Origin("10.0.0.7", "https", "lab.example:7860", "/m/chat", "abc", "00-trace", "ann")
TOKEN = "gf_" + "aB3_-" * 8 + "xyz"


def program_gets(*lines: str, origin: Origin = ORIGIN) -> dict[str, list[str]]:
    return by_name(to_program(headers(lines), origin))


def browser_gets(*lines: str) -> dict[str, list[str]]:
    return by_name(to_browser(headers(lines), ORIGIN))


def headers(lines: tuple[str, ...]) -> list[Header]:
    pairs = (line.partition(": ") for line in lines)
    return [(name.encode(), value.encode("latin-1")) for name, _, value in pairs]


def by_name(given: list[Header]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in given:
        found.setdefault(name.decode(), []).append(value.decode("latin-1"))
    return found


def test_a_program_is_told_where_a_request_comes_from_by_the_gateway_alone() -> None:
    lies = [
        "X-Forwarded-For: 1.2.3.4",
        "X-Forwarded-Proto: ftp",
        "x_forwarded_host: evil",
        "Forwarded: for=1.2.3.4",
        "X-Real-IP: 1.2.3.4",
        "Gpufleet-User: root",
        "gpufleet_user: root",
        "Gpufleet-Session: s1",
        "Gpufleet-Request-Id: mine",
        "Traceparent: 00-lie",
        "X-Forwarded-Prefix: /",
        "Host: evil",
        "Accept: */*",
    ]
    assert program_gets(*lies) == {
        "host": ["lab.example:7860"],
        "accept": ["*/*"],
        "x-forwarded-for": ["10.0.0.7"],
        "x-forwarded-proto": ["https"],
        "x-forwarded-host": ["lab.example:7860"],
        "x-forwarded-prefix": ["/m/chat"],
        "forwarded": ['for=10.0.0.7;host="lab.example:7860";proto=https'],
        "gpufleet-request-id": ["abc"],
        "gpufleet-user": ["ann"],
        "traceparent": ["00-trace"],
    }
    stranger = Origin("::1", "http", 'a"b', "/m/x", "", "")
    assert program_gets(origin=stranger)["forwarded"] == [r'for="[::1]";host="a\"b";proto=http']
    assert "gpufleet-user" not in program_gets(origin=stranger)


@pytest.mark.parametrize(
    ("line", "passes"),
    [
        (f"Authorization: Bearer {TOKEN}", None),
        (f"authorization: bearer   {TOKEN}", None),
        ("Authorization: Bearer gf_cut", None),
        ("Authorization: Bearer sk-of-the-program", "Bearer sk-of-the-program"),
        ("Authorization: Basic YTpi", "Basic YTpi"),
        (f"X-Api-Key: {TOKEN}", None),
        ("X-Api-Key: gf_other", "gf_other"),
        ("Cookie: gpufleet_login_1=x; a=1; GPUFLEET_person=y;b=2", "a=1; b=2"),
        ("Cookie: __Host-gpufleet_login_1=x; __Host-a=1", "__Host-a=1"),
        ("Cookie: gpufleet_person=y", None),
        (f"Cookie: a={TOKEN}; b=2", "b=2"),
        ("Connection: close, X-Secret", None),
        ("TE: trailers", None),
        ("Upgrade: h2c", None),
        ("Proxy-Authorization: Basic YTpi", None),
        ("Expect: 100-continue", None),
        ("Content-Length: 5", "5"),
        ("Tracestate: a=b", "a=b"),
    ],
)
def test_what_of_a_request_a_program_gets(line: str, passes: str | None) -> None:
    gets = program_gets(line, "X-Secret: 1") if line.startswith("Connection") else program_gets(line)
    name = line.partition(":")[0].lower()
    assert gets.get(name) == (None if passes is None else [passes])
    assert "x-secret" not in gets
    assert TOKEN not in str(gets)


def test_where_a_body_ends_is_said_in_one_way() -> None:
    assert is_ambiguous(headers(("Content-Length: 5", "Transfer-Encoding: chunked")))
    both = program_gets("content-length: 5", "transfer-encoding: chunked")
    assert both["transfer-encoding"] == ["chunked"] and "content-length" not in both
    answer = browser_gets("Content-Length: 5", "Transfer-Encoding: chunked")
    assert "content-length" not in answer and "transfer-encoding" not in answer
    # Who asks that it be dropped would have another message begin in the middle of this one.
    assert program_gets("content-length: 5", "Connection: Content-Length, Host")["content-length"] == ["5"]
    assert has_body(headers(("content-length: 10",))) and not has_body(headers(("content-length: 0",)))


def test_a_host_is_a_name_or_an_address_and_maybe_a_port() -> None:
    good = ("gpus", "gpus.example:8080", "127.0.0.1:1", "[::1]", "[::1]:8080", "a_b.localhost", "", "gpus:")
    bad = ("a@b", "a:b@c", "a b", "a/b", "a,b", "a:1:2", "::1", "[::1", "a:99999999", "a%00", "é", "http://a")
    assert [each for each in good if not is_host(each.encode())] == []
    assert [each for each in bad if is_host(each.encode())] == []


@pytest.mark.parametrize(
    ("said", "passes"),
    [
        ("a=1", "a=1; Path=/m/chat/"),
        ("a=1; Path=/; HttpOnly; SameSite=Lax", "a=1; HttpOnly; SameSite=Lax; Path=/m/chat/"),
        ("a=1; path=/app; Domain=lab.example; Secure", "a=1; Secure; Path=/m/chat/app"),
        ("a=1; Path=/m/chat/app", "a=1; Path=/m/chat/app"),
        ("a=1; Path=/m/chatter", "a=1; Path=/m/chat/m/chatter"),
        ("a=1; Path=/m/chat/; Path=/", "a=1; Path=/m/chat/"),
        ("gpufleet_login_1=x", None),
        (" Gpufleet_person=x", None),
        ("__Host-a=1; Secure; Path=/", None),
        ("__Secure-gpufleet=1; Secure", None),
        ("=gpufleet_login_1=x", None),
        ("gpufleet_login_1", None),
        ("a=gpufleet_b", "a=gpufleet_b; Path=/m/chat/"),
    ],
)
def test_a_cookie_of_a_program_is_its_own(said: str, passes: str | None) -> None:
    assert browser_gets(f"Set-Cookie: {said}").get("set-cookie") == (None if passes is None else [passes])


@pytest.mark.parametrize(
    ("said", "passes"),
    [
        ("/login?next=/", "/m/chat/login?next=/"),
        ("/m/chat/login", "/m/chat/login"),
        ("/m/chat?a", "/m/chat?a"),
        ("/m/chatter", "/m/chat/m/chatter"),
        ("https://lab.example:7860/login", "/m/chat/login"),
        ("http://LAB.example:7860", "/m/chat/"),
        ("http://lab.example:7860?a=1", "/m/chat/?a=1"),
        ("http://lab.example:78601/", "http://lab.example:78601/"),
        ("http://lab.example:7860@evil/", "http://lab.example:7860@evil/"),
        ("//other.example/x", "//other.example/x"),
        ("https://other.example/x", "https://other.example/x"),
        ("next", "next"),
        ("?page=2", "?page=2"),
    ],
)
def test_a_redirection_within_a_program_stays_below_its_prefix(said: str, passes: str) -> None:
    assert browser_gets(f"Location: {said}")["location"] == [passes]


def test_a_programs_page_gets_an_origin_of_its_own() -> None:
    gets = browser_gets(
        "Content-Security-Policy: default-src 'self'",
        "Content-Type: text/html",
        "Clear-Site-Data: *",
        "Service-Worker-Allowed: /",
        "Strict-Transport-Security: max-age=9",
        "Alt-Svc: h2=evil",
        "Connection: keep-alive, X-Hop",
        "X-Hop: 1",
        "Server: x",
        "Gpufleet-User: ann",
    )
    assert gets == {
        "content-security-policy": ["default-src 'self'", SANDBOX.decode()],
        "content-type": ["text/html"],
        "gpufleet-request-id": ["abc"],
    }
    assert "allow-same-origin" not in SANDBOX.decode() and "allow-top-navigation" not in SANDBOX.decode()


NAMES = st.sampled_from([*(each.decode() for each in HOP_BY_HOP), "x-a", "Cookie", "authorization", "Gpufleet_User"])
VALUES = st.sampled_from(["close", "x-a", f"Bearer {TOKEN}", f"a={TOKEN}; gpufleet_x=1", "chunked", "7", ""])


@given(st.lists(st.tuples(NAMES, VALUES)))
def test_whatever_a_client_says_no_token_and_no_hop_by_hop_header_passes(pairs: list[tuple[str, str]]) -> None:
    gets = to_program([(name.encode(), value.encode()) for name, value in pairs], ORIGIN)
    names = [name.decode().replace("_", "-") for name, _ in gets]
    assert names.count("gpufleet-user") == names.count("host") == 1
    assert not {each for each in names if each.encode() in HOP_BY_HOP} - {"transfer-encoding"}
    assert TOKEN not in str(gets) and "gpufleet_x" not in str(gets)
