"""Fetch a file whose hash is known into a folder: resumable, checked, safe against a second process."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from convswap.errors import ConvswapError

PIECE_BYTES = 1 << 16
TEMPORARY_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class PinnedFile:
    """A file that is accepted byte for byte only: its name, size in bytes and SHA-256 in hexadecimal."""

    name: str
    size: int
    sha256: str

    def matches(self, content: bytes) -> bool:
        """Return whether these bytes are the whole file."""
        return len(content) == self.size and hashlib.sha256(content).hexdigest() == self.sha256

    def is_intact_at(self, path: Path) -> bool:
        """Return whether the whole file lies at that path. Raises OSError if what is there cannot be read."""
        try:
            return path.stat().st_size == self.size and sha256_of(path) == self.sha256
        except (FileNotFoundError, NotADirectoryError):
            return False


class NotKept(ConvswapError):
    """The folder that a file was to be kept in cannot be written."""


@dataclass(frozen=True)
class Patience:
    """How long a download goes on.

    A connection that brings no byte for `timeout` seconds counts as cut; a file is asked for up to `attempts`
    times, the second time after `pause` seconds, and each later time after twice the wait before it.
    """

    timeout: float = 20.0
    attempts: int = 5
    pause: float = 0.5


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal. Raises OSError if it cannot be read."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fetch(
    file: PinnedFile,
    home: str,
    folder: Path,
    *,
    patience: Patience | None = None,
    by_hand: Path | None = None,
) -> None:
    """Bring `home`/`file.name` into `folder` unless it is there already, whole.

    What has arrived stays in `folder` as `<name>.part`, whatever ends the call, and the next call goes on
    from there. A bar goes to standard error if that is a terminal. Raises ConvswapError,
    naming the address and the folder, if the address cannot be reached, answers with something else or keeps
    cutting the connection, and NotKept if the folder cannot be written. Messages tell to put the file into
    `by_hand`, by default `folder`.
    """
    address = f"{home.rstrip('/')}/{file.name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _only_process(folder):
            if file.is_intact_at(folder / file.name):
                return
            with _advance_shown(file, address) as advance:
                _Download(file, address, folder, patience or Patience(), advance, by_hand or folder).run()
    except OSError as error:
        raise NotKept(
            f"cannot keep {file.name} in {folder}: {error.strerror or error}; "
            "set XDG_CACHE_HOME to a folder that can be written"
        ) from None


@contextlib.contextmanager
def _only_process(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system releases even if the process is killed."""
    with (folder / ".lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process that downloads into {folder}", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _advance_shown(file: PinnedFile, address: str) -> Iterator[Callable[[int], None]]:
    """Give a function that shows how many bytes have arrived, and nothing before any have."""
    if not sys.stderr.isatty():
        yield _line(file, address)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    name = TextColumn("{task.description}", markup=False)
    shown = Console(stderr=True)
    with Progress(name, BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=shown) as progress:
        task = progress.add_task(file.name, total=file.size, visible=False)
        yield lambda arrived: progress.update(task, completed=arrived, visible=True)


def _line(file: PinnedFile, address: str) -> Callable[[int], None]:
    told = False

    def advance(arrived: int) -> None:
        nonlocal told
        if not told:
            print(f"downloading {address} ({file.size:,} bytes)", file=sys.stderr)
        told = True

    return advance


class _Interrupted(Exception):
    """The transfer ended early and may be taken up again."""


@dataclass
class _Download:
    """One file on its way into a folder whose lock is held."""

    file: PinnedFile
    address: str
    folder: Path
    patience: Patience
    advance: Callable[[int], None]
    by_hand: Path
    reached: bool = False

    @property
    def part(self) -> Path:
        return self.folder / f"{self.file.name}.part"

    def run(self) -> None:
        """Fill the part, check it, once more from the start if it is not the file, and move it into place."""
        self._fill()
        if not self.file.is_intact_at(self.part):
            self._discard()
            self._fill()
        found = sha256_of(self.part)
        if found != self.file.sha256:
            self._discard()
            raise self._failure(f"what arrives has SHA-256 {found}, expected {self.file.sha256}")
        self.part.replace(self.folder / self.file.name)

    def _fill(self) -> None:
        """Append to the part until it has the file's size."""
        if self._arrived() > self.file.size:
            self._discard()
        if self._arrived() == self.file.size:
            return
        for attempt in range(self.patience.attempts):
            try:
                return self._append()
            except _Interrupted as interruption:
                # An address that was never reached stays out of reach: waiting would only look like a hang.
                if not self.reached:
                    raise self._failure(str(interruption)) from None
                reason = str(interruption)
            if attempt + 1 < self.patience.attempts:
                time.sleep(self.patience.pause * 2**attempt)
        arrived = f"{self._arrived():,} of {self.file.size:,} bytes have arrived"
        raise self._failure(
            f"{reason}, {self.patience.attempts} times; {arrived}, and the next call goes on from there"
        )

    def _append(self) -> None:
        """Ask for what is missing and write it to the part as it arrives."""
        arrived = self._arrived()
        with contextlib.closing(self._open(arrived)) as response:
            self.reached = True
            if response.status == http.HTTPStatus.PARTIAL_CONTENT:
                if not response.headers.get("Content-Range", "").startswith(f"bytes {arrived}-"):
                    self._discard()
                    raise _Interrupted("the server sends another range than it was asked for")
            else:
                self._require_whole_file(response)
                arrived = 0
            with self.part.open("ab" if arrived else "wb") as part:
                while arrived < self.file.size:
                    piece = self._receive(response, self.file.size - arrived)
                    part.write(piece)
                    arrived += len(piece)
                    self.advance(arrived)

    def _open(self, arrived: int) -> http.client.HTTPResponse:
        request = urllib.request.Request(self.address)
        if arrived:
            request.add_header("Range", f"bytes={arrived}-")
        try:
            return urllib.request.urlopen(request, timeout=self.patience.timeout)
        except urllib.error.HTTPError as error:
            error.close()
            self.reached = True
            reason = f"the server answers {error.code} {error.reason}"
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and arrived:
                self._discard()
            elif error.code not in TEMPORARY_STATUSES:
                raise self._failure(reason) from None
            raise _Interrupted(reason) from None
        except (OSError, http.client.HTTPException) as error:
            raise _Interrupted(self._describe(error)) from None

    def _require_whole_file(self, response: http.client.HTTPResponse) -> None:
        """Refuse what cannot be the file, such as a network's login page, before it overwrites the part."""
        if response.status != http.HTTPStatus.OK:
            raise self._failure(f"the server answers {response.status} {response.reason}")
        if response.length is not None and response.length != self.file.size:
            kind = response.headers.get_content_type()
            raise self._failure(
                f"the server sends {response.length:,} bytes of {kind}, expected {self.file.size:,} bytes"
            )

    def _receive(self, response: http.client.HTTPResponse, missing: int) -> bytes:
        try:
            piece = response.read1(min(PIECE_BYTES, missing))
        except (OSError, http.client.HTTPException) as error:
            raise _Interrupted(self._describe(error)) from None
        if not piece:
            raise _Interrupted("the connection was cut")
        return piece

    def _describe(self, error: Exception) -> str:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(cause, TimeoutError):
            return f"nothing came for {self.patience.timeout:g} seconds"
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        return str(cause) or type(cause).__name__

    def _arrived(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _discard(self) -> None:
        self.part.unlink(missing_ok=True)

    def _failure(self, reason: str) -> ConvswapError:
        return ConvswapError(
            f"cannot download {self.address}: {' '.join(reason.split())}; put it and the files beside it "
            f"into {self.by_hand} by hand, or use --data synthetic, which needs no files"
        )
