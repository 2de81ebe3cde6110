"""What a job listens with in tests of its ports: HTTP and WebSockets at one port, and a server of before at another.

python job_app.py PORT PORT-OF-BEFORE
"""

from __future__ import annotations

import asyncio
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

PAGE = """<!doctype html><title>A board</title><h1>Board</h1><p id="who"></p><p id="heard"></p>
<link rel="stylesheet" href="/style.css"><script src="/script.js"></script>"""

SCRIPT = """
document.cookie = "own=1; path=/";
localStorage.setItem("kept", "kept");
fetch("/who", { method: "POST" }).then((answer) => answer.json()).then((who) => {
  document.querySelector("#who").textContent = `${who["gpufleet-user"]} ${localStorage.getItem("kept")} ${who.cookie}`;
});
const socket = new WebSocket(`ws://${location.host}/echo`);
socket.onopen = () => socket.send("hello");
socket.onmessage = ({ data }) => { document.querySelector("#heard").textContent = data; };
"""

TOLD = ("host", "origin", "referer", "cookie", "authorization", "gpufleet-user", "x-forwarded-prefix")


async def page(request: Request) -> Response:
    return HTMLResponse(PAGE)


async def script(request: Request) -> Response:
    return Response(SCRIPT, media_type="text/javascript")


async def style(request: Request) -> Response:
    return Response("h1 { color: rgb(15, 111, 104); }", media_type="text/css")


async def who(request: Request) -> Response:
    body = await request.body()
    told = {name: request.headers.get(name, "") for name in TOLD}
    response = JSONResponse(told | {"path": request.url.path, "query": request.url.query, "bytes": len(body)})
    response.set_cookie("own", "2", domain="localhost")
    return response


async def go(request: Request) -> Response:
    return RedirectResponse(f"http://{request.headers['host']}/who", 302)


async def echo(socket: WebSocket) -> None:
    await socket.accept(subprotocol="second" if "second" in socket.scope["subprotocols"] else None)
    try:
        while True:
            await socket.send_text(f"{socket.headers['origin']} said {await socket.receive_text()}")
    except WebSocketDisconnect:
        pass


async def health(request: Request) -> Response:
    return PlainTextResponse("well")


async def of_before(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An answer whose end is that of its connection; to /greet what is no HTTP."""
    head = await reader.readuntil(b"\r\n\r\n")
    if b"/greet" in head:
        writer.write(b"220 hello\r\n")
    else:
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nbegun\n")
        await writer.drain()
        if b"/endless" in head:
            await asyncio.sleep(600)
    writer.close()


async def main(port: int, port_of_before: int) -> None:
    routes = [
        *(Route("/", page), Route("/script.js", script), Route("/style.css", style), Route("/health", health)),
        *(Route("/who", who, methods=["GET", "POST"]), Route("/go", go), WebSocketRoute("/echo", echo)),
    ]
    config = uvicorn.Config(Starlette(routes=routes), host="127.0.0.1", port=port, log_level="warning")
    async with await asyncio.start_server(of_before, "127.0.0.1", port_of_before):
        await uvicorn.Server(config).serve()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
