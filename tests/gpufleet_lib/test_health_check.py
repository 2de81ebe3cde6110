"""What a container engine asks again and again: whether a program serves."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from gpufleet.net.health_check import main


@pytest.fixture
def served() -> Iterator[tuple[str, Any]]:
    """Where a program is asked by gRPC, and what says how it is."""
    says: Any = health.HealthServicer()
    server = grpc.server(ThreadPoolExecutor(2))
    health_pb2_grpc.add_HealthServicer_to_server(says, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", says
    server.stop(None).wait()


class _Answering(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 503)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    """Where a program is asked by HTTP."""
    with HTTPServer(("127.0.0.1", 0), _Answering) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_who_serves_is_well_and_who_stands_by_or_is_gone_is_not(
    served: tuple[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    address, says = served
    for status, code in (("SERVING", 0), ("NOT_SERVING", 1)):
        says.set("", health_pb2.HealthCheckResponse.ServingStatus.Value(status))
        assert main([address]) == code
    assert capsys.readouterr().err == f"{address} does not serve: NOT_SERVING\n"


def test_a_url_has_to_answer_200(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{url}/healthz"]) == 0
    assert main([f"{url}/other"]) == 1
    assert "it answers 503" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["http://127.0.0.1:1/healthz", "127.0.0.1:1", "no address:99999"])
def test_where_nobody_listens_it_says_so(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([where]) == 1
    assert f"{where} does not serve: " in capsys.readouterr().err


def test_bad_words_are_told_how_it_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["a", "b", "c"]) == 2
    assert "usage: " in capsys.readouterr().err
