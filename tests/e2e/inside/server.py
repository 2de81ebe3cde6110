"""A job that listens: what it does with a connection, the first line that comes by it says."""

import os
import socket
import struct
import subprocess
import sys
import threading
import time

PIECE = b"x" * 65_536


def serve(peer: socket.socket) -> None:
    with peer, peer.makefile("rb") as lines:
        match lines.readline().decode().split():
            case ["echo"]:
                while data := lines.readline():
                    peer.sendall(data)
                peer.sendall(b"bye")
            case ["stall"]:
                time.sleep(3_600)
            case ["flood", count]:
                reading = threading.Thread(target=lambda: [0 for _ in iter(lambda: lines.read1(65_536), b"")])
                reading.start()
                for _ in range(int(count)):
                    peer.sendall(PIECE)
                peer.shutdown(socket.SHUT_WR)
                reading.join()
            case ["reset"]:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            case ["ended"]:
                print("ended", lines.read(), flush=True)
            case _:
                peer.sendall(b"what?")


def main() -> None:
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1"
    if address == "child":  # what listens is a grandchild whose parent has gone
        if os.fork() == 0:
            subprocess.Popen([sys.executable, __file__, "127.0.0.1"], start_new_session=True)
            os._exit(0)
        time.sleep(3_600)
    port = int(address) if address.isdecimal() else 0
    host = "127.0.0.1" if port else address
    listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    print("listening", listener.getsockname()[1], flush=True)
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


if __name__ == "__main__":
    main()
