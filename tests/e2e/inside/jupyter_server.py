"""A stand-in for Jupyter: it takes its options and its token, shows a page to who has that, and saves at its end."""

import http.server
import os
import signal
import sys
import urllib.parse
from pathlib import Path

options = dict(each.removeprefix("--ServerApp.").split("=", 1) for each in sys.argv[1:] if "=" in each)


class Page(http.server.BaseHTTPRequestHandler):
    """One page, for who has the token."""

    def do_GET(self) -> None:
        asked = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        self.send_response(200 if asked.get("token") == [os.environ["JUPYTER_TOKEN"]] else 403)
        self.end_headers()


class Server(http.server.ThreadingHTTPServer):
    """It says nothing of connections that end without a question, as those that only try whether it listens."""

    def handle_error(self, request: object, client_address: object) -> None:
        pass


def end(number: int, frame: object) -> None:
    """What was open is saved."""
    Path("work.ipynb").write_text("{}")
    sys.exit(0)


signal.signal(signal.SIGTERM, end)
Server((options["ip"], int(options["port"])), Page).serve_forever()
