"""A local web server that misbehaves on demand, for the tests of downloading."""

from __future__ import annotations

import contextlib
import hashlib
import random
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from convswap.data.fetch import PinnedFile, RetryPolicy, fetch

HANG_SECONDS = 30.0


class DataServer(ThreadingHTTPServer):
    """Serves `content` by name. Entry k of `plan` answers request k, the last entry also later requests.

    Plan entries: "serve", "cut N" (stop after N bytes of the body), "slow" (the body in small pieces),
    "stall N" (send N bytes, then nothing), "hang" (send nothing at all), "alter" (one byte is another),
    "ignore range", "wrong range", "page" (a small HTML page), "status N".
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, content: dict[str, bytes], plan: list[str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content = content
        self.plan = plan
        self.ranges: list[str | None] = []
        self.names: list[str] = []
        self.closing = threading.Event()

    @property
    def home(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: tests disconnect on purpose."""


@contextlib.contextmanager
def serving(content: dict[str, bytes], plan: list[str]) -> Iterator[DataServer]:
    server = DataServer(content, plan)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: DataServer

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        name = self.path.lstrip("/")
        content = self.server.content[name]
        byte_range = self.headers.get("Range")
        plan = self.server.plan
        action, _, number = plan[min(len(self.server.ranges), len(plan) - 1)].partition(" ")
        self.server.ranges.append(byte_range)
        self.server.names.append(name)
        start = int(byte_range.removeprefix("bytes=").removesuffix("-")) if byte_range else 0
        if action == "hang":
            self.server.closing.wait(HANG_SECONDS)
            return
        if action == "status":
            self.send_error(int(number))
            return
        if action == "page":
            self._answer(200, b"<html>please log in</html>", kind="text/html")
            return
        if action == "alter":
            content = content[:-1] + bytes([content[-1] ^ 1])
        if action == "wrong":
            self._answer(206, content, content_range=f"bytes 0-{len(content) - 1}/{len(content)}")
            return
        if action == "ignore" or not byte_range:
            self._answer(200, content, action, number)
        elif start >= len(content):
            self.send_error(416)
        else:
            content_range = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self._answer(206, content[start:], action, number, content_range=content_range)

    def _answer(
        self,
        status: int,
        body: bytes,
        action: str = "serve",
        number: str = "",
        kind: str = "application/gzip",
        content_range: str | None = None,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        if action in ("cut", "stall"):
            self.wfile.write(body[: int(number)])
            self.wfile.flush()
            if action == "stall":
                self.server.closing.wait(HANG_SECONDS)
        elif action == "slow":
            for piece in range(0, len(body), -(-len(body) // 20)):
                self.wfile.write(body[piece : piece - (-len(body) // 20)])
                time.sleep(0.02)
        else:
            self.wfile.write(body)


# The served file, and the patience of tests: longer than any machine takes, or short if no answer will come.
CONTENT = random.Random(6).randbytes(300_000)
FILE = PinnedFile("shirts.gz", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
LONG = RetryPolicy(timeout=60, attempts=3, pause=0.01)
SHORT = RetryPolicy(timeout=0.4, attempts=3, pause=0.01)


def get(home: str, folder: Path, file: PinnedFile = FILE, retry_policy: RetryPolicy = LONG) -> bytes:
    """Fetch the file into `folder` and return its content."""
    fetch(file, home, folder, retry_policy=retry_policy)
    return (folder / file.name).read_bytes()


def part_of(folder: Path) -> Path:
    """Return the path of the partial download."""
    return folder / f"{FILE.name}.part"
