"""Download a file with a known hash into a folder: resumable, verified, safe with concurrent processes."""

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

CHUNK_BYTES = 1 << 16
TEMPORARY_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class PinnedFile:
    """A file with known content: its name, size in bytes and SHA-256 in hexadecimal."""

    name: str
    size: int
    sha256: str

    def matches(self, content: bytes) -> bool:
        """Return whether `content` is the content of the file."""
        return len(content) == self.size and hashlib.sha256(content).hexdigest() == self.sha256

    def is_intact_at(self, path: Path) -> bool:
        """Return whether the file at `path` has the right content. Raises OSError if it cannot be read."""
        try:
            return path.stat().st_size == self.size and sha256_of(path) == self.sha256
        except (FileNotFoundError, NotADirectoryError):
            return False


class CacheNotWritable(ConvswapError):
    """The cache folder of a file cannot be written."""


@dataclass(frozen=True)
class RetryPolicy:
    """Timeout and retries of a download.

    A connection without data for `timeout` seconds counts as cut. There are up to `attempts` requests. The
    second request comes after `pause` seconds, and each further one after twice the previous pause.
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
    base_url: str,
    folder: Path,
    *,
    retry_policy: RetryPolicy | None = None,
    manual_folder: Path | None = None,
) -> None:
    """Download `base_url`/`file.name` into `folder` unless the file is there already and intact.

    Received bytes stay in `folder` as `<name>.part`, however the call ends, and the next call resumes from
    there. Progress goes to standard error, as a bar if that is a terminal. Error messages tell the user to
    put the file into `manual_folder`, by default `folder`.

    Raises:
        CacheNotWritable: the folder cannot be written.
        ConvswapError: the address cannot be reached, sends another file, or keeps cutting the connection. The
            message names the address and the folder.
    """
    address = f"{base_url.rstrip('/')}/{file.name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _folder_lock(folder):
            if file.is_intact_at(folder / file.name):
                return
            with _progress_callback(file, address) as show_progress:
                policy = retry_policy or RetryPolicy()
                _Download(file, address, folder, policy, show_progress, manual_folder or folder).run()
    except OSError as error:
        raise CacheNotWritable(
            f"cannot keep {file.name} in {folder}: {error.strerror or error}; "
            "set XDG_CACHE_HOME to a folder that can be written"
        ) from None


@contextlib.contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Hold the folder's lock within the context. The system releases it even if the process is killed."""
    with (folder / ".lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process that downloads into {folder}", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _progress_callback(file: PinnedFile, address: str) -> Iterator[Callable[[int], None]]:
    """Yield a function that shows the number of received bytes. It shows nothing before its first call."""
    if not sys.stderr.isatty():
        yield _announce_once(file, address)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    name = TextColumn("{task.description}", markup=False)
    console = Console(stderr=True)
    with Progress(name, BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=console) as progress:
        task = progress.add_task(file.name, total=file.size, visible=False)
        yield lambda received: progress.update(task, completed=received, visible=True)


def _announce_once(file: PinnedFile, address: str) -> Callable[[int], None]:
    is_announced = False

    def show_progress(received: int) -> None:
        nonlocal is_announced
        if not is_announced:
            print(f"downloading {address} ({file.size:,} bytes)", file=sys.stderr)
        is_announced = True

    return show_progress


class _TransferInterrupted(Exception):
    """The transfer ended early and may be resumed."""


@dataclass
class _Download:
    """The download of a file into a folder whose lock is held."""

    file: PinnedFile
    address: str
    folder: Path
    retry_policy: RetryPolicy
    show_progress: Callable[[int], None]
    manual_folder: Path
    was_reached: bool = False

    @property
    def part_path(self) -> Path:
        return self.folder / f"{self.file.name}.part"

    def run(self) -> None:
        """Complete, verify and move the part file; if its content is wrong, retry once from the start."""
        self._complete()
        if not self.file.is_intact_at(self.part_path):
            self._discard()
            self._complete()
        digest = sha256_of(self.part_path)
        if digest != self.file.sha256:
            self._discard()
            raise self._failure(f"what arrives has SHA-256 {digest}, expected {self.file.sha256}")
        self.part_path.replace(self.folder / self.file.name)

    def _complete(self) -> None:
        """Append to the part file until it has the size of the file."""
        if self._received() > self.file.size:
            self._discard()
        if self._received() == self.file.size:
            return
        for attempt in range(self.retry_policy.attempts):
            try:
                return self._append()
            except _TransferInterrupted as interruption:
                # No retry if the address was never reached: waiting would only look like a hang.
                if not self.was_reached:
                    raise self._failure(str(interruption)) from None
                reason = str(interruption)
            if attempt + 1 < self.retry_policy.attempts:
                time.sleep(self.retry_policy.pause * 2**attempt)
        received = f"{self._received():,} of {self.file.size:,} bytes have arrived"
        raise self._failure(
            f"{reason}, {self.retry_policy.attempts} times; {received}, and the next call goes on from there"
        )

    def _append(self) -> None:
        """Request the missing bytes and write them to the part file as they arrive."""
        received = self._received()
        with contextlib.closing(self._open(received)) as response:
            self.was_reached = True
            if response.status == http.HTTPStatus.PARTIAL_CONTENT:
                if not response.headers.get("Content-Range", "").startswith(f"bytes {received}-"):
                    self._discard()
                    raise _TransferInterrupted("the server sends another range than it was asked for")
            else:
                self._require_whole_file(response)
                received = 0
            with self.part_path.open("ab" if received else "wb") as part:
                while received < self.file.size:
                    chunk = self._receive(response, self.file.size - received)
                    part.write(chunk)
                    received += len(chunk)
                    self.show_progress(received)

    def _open(self, received: int) -> http.client.HTTPResponse:
        request = urllib.request.Request(self.address)
        if received:
            request.add_header("Range", f"bytes={received}-")
        try:
            return urllib.request.urlopen(request, timeout=self.retry_policy.timeout)
        except urllib.error.HTTPError as error:
            error.close()
            self.was_reached = True
            reason = f"the server answers {error.code} {error.reason}"
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and received:
                self._discard()
            elif error.code not in TEMPORARY_STATUSES:
                raise self._failure(reason) from None
            raise _TransferInterrupted(reason) from None
        except (OSError, http.client.HTTPException) as error:
            raise _TransferInterrupted(self._describe(error)) from None

    def _require_whole_file(self, response: http.client.HTTPResponse) -> None:
        """Raise ConvswapError for a response that cannot be the file, before it overwrites the part file.

        Such a response may be the login page of a network.
        """
        if response.status != http.HTTPStatus.OK:
            raise self._failure(f"the server answers {response.status} {response.reason}")
        if response.length is not None and response.length != self.file.size:
            kind = response.headers.get_content_type()
            raise self._failure(
                f"the server sends {response.length:,} bytes of {kind}, expected {self.file.size:,} bytes"
            )

    def _receive(self, response: http.client.HTTPResponse, missing: int) -> bytes:
        try:
            chunk = response.read1(min(CHUNK_BYTES, missing))
        except (OSError, http.client.HTTPException) as error:
            raise _TransferInterrupted(self._describe(error)) from None
        if not chunk:
            raise _TransferInterrupted("the connection was cut")
        return chunk

    def _describe(self, error: Exception) -> str:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(cause, TimeoutError):
            return f"nothing came for {self.retry_policy.timeout:g} seconds"
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        return str(cause) or type(cause).__name__

    def _received(self) -> int:
        return self.part_path.stat().st_size if self.part_path.exists() else 0

    def _discard(self) -> None:
        self.part_path.unlink(missing_ok=True)

    def _failure(self, reason: str) -> ConvswapError:
        return ConvswapError(
            f"cannot download {self.address}: {' '.join(reason.split())}; put it and the files beside it "
            f"into {self.manual_folder} by hand, or use --data synthetic, which needs no files"
        )
