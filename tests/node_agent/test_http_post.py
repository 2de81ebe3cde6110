"""A POST through proxies and redirections: bounded, given up honestly, and silent about what is secret in a URL."""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpufleet.net.certificates import make_certificates
from node_agent import notice_delivery
from node_agent.notice_delivery import REDIRECTS_MAX, NoticeNotDelivered, PostFailed, PostRefused, post, post_once
from tests.e2e.processes import until

BODY = b'{"notice":"start"}'
WAIT_S = 60.0
"""A bound for what a busy machine may take; nothing here waits for it to pass."""

OK = b"HTTP/1.1 200 OK\r\n\r\n"


@pytest.fixture(autouse=True)
def no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Loopback:
    """A server: each request, whole, and an answer to each; the last answer again and again, None for silence."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = answers
        self.asked: list[bytes] = []
        self.has_hung_up = asyncio.Event()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.read(65_536)
        head, _, body = request.partition(b"\r\n\r\n")
        while b"content-length:" in head.lower() and len(body) < int(
            head.lower().split(b"content-length:")[1].split()[0]
        ):
            body += await reader.read(65_536)
        self.asked.append(head + b"\r\n\r\n" + body)
        answer = self.answers[min(len(self.asked), len(self.answers)) - 1]
        if answer is not None:
            writer.write(answer)
            await writer.drain()
        if answer is None or answer.endswith(b"and on"):
            while await reader.read(65_536):
                pass
            self.has_hung_up.set()
        writer.close()


@asynccontextmanager
async def loopback(*answers: bytes | None, tls: ssl.SSLContext | None = None) -> AsyncIterator[Loopback]:
    server = Loopback(*answers)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    async with listening:
        scheme = "https" if tls else "http"
        server.url = f"{scheme}://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        yield server


def redirect(status: int, location: str) -> bytes:
    return f"HTTP/1.1 {status} Elsewhere\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "notice-post"]


async def test_a_proxy_of_the_environment_is_used_but_not_for_hosts_that_it_is_not_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with loopback(OK) as proxy, loopback(OK) as server:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert await post_once("http://hooks.invalid/T00/b?c=d", BODY, WAIT_S, allows_local=True) == 200
        head, _, body = proxy.asked[0].partition(b"\r\n\r\n")
        assert head.startswith(b"POST http://hooks.invalid/T00/b?c=d HTTP/1.1\r\n")
        assert b"host: hooks.invalid" in head.lower() and body == BODY
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert await post_once(f"{server.url}/hook", BODY, WAIT_S, allows_local=True) == 200
        assert (len(proxy.asked), len(server.asked)) == (1, 1)


async def test_of_an_https_url_a_proxy_hears_the_host_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with loopback(b"HTTP/1.1 403 No\r\n\r\n") as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        with pytest.raises(PostFailed, match="403"):
            await post_once("https://hooks.invalid/secret?secret", BODY, WAIT_S, allows_local=True)
    assert proxy.asked[0].startswith(b"CONNECT hooks.invalid:443 HTTP/1.")
    assert b"secret" not in b"".join(proxy.asked)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirection_repeats_the_post_with_its_body(status: int) -> None:
    async with loopback(OK) as there, loopback(redirect(status, "/second"), redirect(status, f"{there.url}/x")) as here:
        assert await post_once(f"{here.url}/first", BODY, WAIT_S, allows_local=True) == 200
    assert [each.split(b" HTTP")[0] for each in here.asked] == [b"POST /first", b"POST /second"]
    head, _, body = there.asked[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /x HTTP/1.1") and b"content-type: application/json" in head.lower()
    assert body == BODY


async def test_see_other_is_followed_with_a_get_without_the_body() -> None:
    async with loopback(redirect(303, "/seen"), OK) as server:
        assert await post_once(f"{server.url}/hook", BODY, WAIT_S, allows_local=True) == 200
    assert server.asked[1].startswith(b"GET /seen HTTP/1.1")
    assert b"notice" not in server.asked[1] and b"content-" not in server.asked[1].lower()


async def test_a_circle_of_redirections_ends_and_is_not_tried_again() -> None:
    async with loopback(redirect(307, "/again")) as server:
        with pytest.raises(NoticeNotDelivered, match=f"redirected more than {REDIRECTS_MAX} times"):
            await post(f"{server.url}/hook", {}, allows_local=True)
    assert len(server.asked) == REDIRECTS_MAX + 1


async def test_no_redirection_leads_from_https_to_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = make_certificates(tmp_path, ["127.0.0.1"])
    monkeypatch.setenv("SSL_CERT_FILE", str(files.ca_file))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.cert_file, files.key_file)
    async with loopback(OK) as plain, loopback(redirect(307, plain.url), OK, tls=context) as secure:
        with pytest.raises(PostRefused, match="from https to http"):
            await post_once(f"{secure.url}/hook", BODY, WAIT_S, allows_local=True)
        assert plain.asked == []
        assert await post_once(f"{secure.url}/hook", BODY, WAIT_S, allows_local=True) == 200, "TLS by itself works"
        up = redirect(307, f"{secure.url}/hook")
        async with loopback(up) as from_plain:
            assert await post_once(from_plain.url, BODY, WAIT_S, allows_local=True) == 200, (
                "from http to https is an improvement"
            )


@pytest.mark.parametrize(
    "location",
    ["ftp://127.0.0.1/x", "file:///etc/passwd", "http://a:b@127.0.0.1/", "http://[", "http://:80/", "http://h:0/"],
)
async def test_a_redirection_to_anything_but_a_host_of_the_web_is_refused(location: str) -> None:
    async with loopback(redirect(302, location)) as server:
        with pytest.raises(PostRefused, match="redirects to what is no"):
            await post_once(server.url, BODY, WAIT_S, allows_local=True)


async def test_no_answer_is_read_beyond_its_head() -> None:
    async with loopback(b"HTTP/1.1 200 OK\r\n\r\nand on") as server:
        assert await post_once(server.url, BODY, WAIT_S, allows_local=True) == 200
        async with asyncio.timeout(WAIT_S):
            await server.has_hung_up.wait()


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_server_that_never_answers_is_left_with_its_thread(scheme: str) -> None:
    async with loopback(None) as server:  # for https it is the handshake that never ends
        with pytest.raises(TimeoutError):
            await post_once(server.url.replace("http", scheme, 1), BODY, 0.2, allows_local=True)
        async with asyncio.timeout(WAIT_S):
            await server.has_hung_up.wait()
        await until("the thread has ended", lambda: not threads())


async def test_a_server_that_sends_a_byte_now_and_then_is_left_all_the_same() -> None:
    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = asyncio.create_task(reader.read(-1))
        while not left.done():  # each byte begins the socket's own time-out anew
            writer.write(b"H")
            await asyncio.wait({left}, timeout=0.01)
        writer.close()

    listening = await asyncio.start_server(trickle, "127.0.0.1", 0)
    async with listening:
        with pytest.raises(TimeoutError):
            await post_once(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/", BODY, 0.2, allows_local=True)
        await until("the thread has ended", lambda: not threads())


async def test_who_gives_up_a_post_ends_its_connection_and_its_thread() -> None:
    async with loopback(None) as server:
        waiting = asyncio.create_task(post_once(server.url, BODY, WAIT_S, allows_local=True))
        await until("the server was asked", lambda: server.asked)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with asyncio.timeout(WAIT_S):
            await server.has_hung_up.wait()
        await until("the thread has ended", lambda: not threads())


async def test_there_are_no_more_threads_than_the_bound_and_each_gives_its_place_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notice_delivery, "_places", threading.BoundedSemaphore(1))
    async with loopback(None, OK) as server:
        waiting = asyncio.create_task(post_once(server.url, BODY, WAIT_S, allows_local=True))
        await until("the server was asked", lambda: server.asked)
        with pytest.raises(PostFailed, match="under way already"):
            await post_once(server.url, BODY, WAIT_S, allows_local=True)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await until("the thread has ended", lambda: not threads())
        assert await post_once(server.url, BODY, WAIT_S, allows_local=True) == 200


@pytest.mark.parametrize(
    "answer",
    [
        b"secret, this is no HTTP\r\n\r\n",
        b"",
        b"HTTP/1.1 404 No\r\n\r\n",
        redirect(307, "http://127.0.0.1:1/secret"),
        redirect(307, "gopher://secret/secret"),
        redirect(307, "http://sec ret\\x00/secret"),
        redirect(307, "/secret"),
        None,
    ],
)
async def test_no_error_and_no_log_holds_what_is_secret_in_a_url(
    answer: bytes | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(notice_delivery, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(notice_delivery, "POST_SECONDS_MAX", 0.2 if answer is None else WAIT_S)
    async with loopback(answer) as server:
        with pytest.raises(NoticeNotDelivered) as failed:
            await post(f"{server.url}/secret?key=secret", {}, allows_local=True)
    assert str(failed.value) and "secret" not in str(failed.value)
    assert "secret" not in caplog.text


async def test_a_url_that_the_client_cannot_use_is_not_told_either() -> None:
    for url in (
        "http://127.0.0.1:1/sec ret",
        "http://127.0.0.1:1/secr\u00e9t",
        "http://secret:port/",
        "gopher://secret/",
    ):
        with pytest.raises((PostFailed, PostRefused)) as failed:
            await post_once(url, BODY, WAIT_S, allows_local=True)
        assert "sec" not in str(failed.value)
