"""Downloads in several processes: one downloads for all, and an interrupted download is resumed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from data_server import CONTENT, FILE, get, part_of, serving


def fetching_process(home: str, folder: Path) -> subprocess.Popen[str]:
    program = (
        "import sys; from pathlib import Path; from convswap.data.fetch import PinnedFile, fetch\n"
        f"fetch({FILE!r}, {home!r}, Path({str(folder)!r}))"
    )
    return subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)


def test_two_processes_download_the_file_once(tmp_path: Path) -> None:
    with serving({FILE.name: CONTENT}, ["slow"]) as server:
        processes = [fetching_process(server.home, tmp_path) for _ in range(2)]
        for process in processes:
            _, errors = process.communicate()
            assert process.returncode == 0, errors
        assert server.ranges == [None]
    assert (tmp_path / FILE.name).read_bytes() == CONTENT


def test_an_interrupted_download_can_be_resumed(tmp_path: Path) -> None:
    with serving({FILE.name: CONTENT}, ["stall 200000", "serve"]) as server:
        process = fetching_process(server.home, tmp_path)
        while not (part_of(tmp_path).exists() and part_of(tmp_path).stat().st_size > 100_000):
            assert process.poll() is None, "the download ended"
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        process.communicate()
        assert process.returncode != 0
        arrived = part_of(tmp_path).read_bytes()
        assert 100_000 < len(arrived) <= 200_000
        assert arrived == CONTENT[: len(arrived)]
        assert get(server.home, tmp_path) == CONTENT
        assert server.ranges == [None, f"bytes={len(arrived)}-"]
