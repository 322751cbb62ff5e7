"""Downloading against a local server that cuts, alters, stalls and refuses."""

from __future__ import annotations

import hashlib
import io
import socket
import sys
import time
from pathlib import Path

import pytest
from convswap.data.fetch import fetch
from convswap.errors import ConvswapError
from data_server import CONTENT, FILE, SHORT, get, part_of, serving


def assert_one_helpful_line(message: str, home: str, folder: Path) -> None:
    assert "\n" not in message
    assert f"{home}{FILE.name}" in message
    assert str(folder) in message
    assert "--data synthetic" in message


def test_a_file_arrives_whole_and_leaves_no_part(tmp_path: Path) -> None:
    with serving({FILE.name: CONTENT}, ["serve"]) as server:
        assert get(server.home, tmp_path / "new" / "folder") == CONTENT
        assert server.ranges == [None]
    assert not part_of(tmp_path / "new" / "folder").exists()


def test_an_intact_file_is_not_asked_for_again(tmp_path: Path) -> None:
    (tmp_path / FILE.name).write_bytes(CONTENT)
    with serving({FILE.name: CONTENT}, ["serve"]) as server:
        assert get(server.home, tmp_path) == CONTENT
        assert server.ranges == []


@pytest.mark.parametrize("damaged", [CONTENT[:1000], b"x" + CONTENT[1:], b"", CONTENT + b"x"])
def test_a_damaged_file_is_downloaded_anew(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / FILE.name).write_bytes(damaged)
    with serving({FILE.name: CONTENT}, ["serve"]) as server:
        assert get(server.home, tmp_path) == CONTENT


def test_a_cut_connection_is_resumed_where_it_was_cut(tmp_path: Path) -> None:
    with serving({FILE.name: CONTENT}, ["cut 100000", "cut 50000", "serve"]) as server:
        assert get(server.home, tmp_path) == CONTENT
        assert server.ranges == [None, "bytes=100000-", "bytes=150000-"]


def test_a_part_left_by_an_earlier_call_is_resumed(tmp_path: Path) -> None:
    part_of(tmp_path).write_bytes(CONTENT[:123_456])
    with serving({FILE.name: CONTENT}, ["serve"]) as server:
        assert get(server.home, tmp_path) == CONTENT
        assert server.ranges == ["bytes=123456-"]


def test_a_complete_part_needs_no_connection(tmp_path: Path) -> None:
    part_of(tmp_path).write_bytes(CONTENT)
    with serving({FILE.name: CONTENT}, ["serve"]) as server:
        assert get(server.home, tmp_path) == CONTENT
        assert server.ranges == []


@pytest.mark.parametrize("part", [b"y" * 1000, b"y" * len(CONTENT), CONTENT + b"y"])
def test_a_part_that_is_no_beginning_of_the_file_is_replaced(tmp_path: Path, part: bytes) -> None:
    part_of(tmp_path).write_bytes(part)
    with serving({FILE.name: CONTENT}, ["serve"]) as server:
        assert get(server.home, tmp_path) == CONTENT
        assert server.ranges[-1] is None


@pytest.mark.parametrize("action", ["ignore range", "wrong range"])
def test_a_server_that_does_not_honour_the_range_gives_the_whole_file(tmp_path: Path, action: str) -> None:
    part_of(tmp_path).write_bytes(CONTENT[:5000])
    with serving({FILE.name: CONTENT}, [action, "serve"]) as server:
        assert get(server.home, tmp_path) == CONTENT


def test_a_server_that_refuses_the_range_is_asked_for_the_whole_file(tmp_path: Path) -> None:
    part_of(tmp_path).write_bytes(CONTENT[:5000])
    with serving({FILE.name: CONTENT}, ["status 416", "serve"]) as server:
        assert get(server.home, tmp_path) == CONTENT
        assert server.ranges == ["bytes=5000-", None]


def test_a_stalled_connection_is_dropped_and_resumed(tmp_path: Path) -> None:
    with serving({FILE.name: CONTENT}, ["stall 100000", "serve"]) as server:
        assert get(server.home, tmp_path, retry_policy=SHORT) == CONTENT
        assert server.ranges == [None, "bytes=100000-"]


def test_a_busy_server_is_asked_again(tmp_path: Path) -> None:
    with serving({FILE.name: CONTENT}, ["status 503", "serve"]) as server:
        assert get(server.home, tmp_path) == CONTENT


def test_a_file_altered_once_is_downloaded_a_second_time(tmp_path: Path) -> None:
    with serving({FILE.name: CONTENT}, ["alter", "serve"]) as server:
        assert get(server.home, tmp_path) == CONTENT
        assert server.ranges == [None, None]


def test_a_file_that_stays_altered_is_refused_and_not_kept(tmp_path: Path) -> None:
    with serving({FILE.name: CONTENT}, ["alter"]) as server:
        with pytest.raises(ConvswapError) as caught:
            get(server.home, tmp_path)
        assert server.ranges == [None, None]
        assert_one_helpful_line(str(caught.value), server.home, tmp_path)
    altered = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    assert hashlib.sha256(altered).hexdigest() in str(caught.value)
    assert FILE.sha256 in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_connection_that_is_always_cut_gives_up_and_keeps_what_arrived(tmp_path: Path) -> None:
    with serving({FILE.name: CONTENT}, ["cut 1000"]) as server:
        with pytest.raises(
            ConvswapError, match="the connection was cut, 3 times; 3,000 of 300,000"
        ) as caught:
            get(server.home, tmp_path)
        assert_one_helpful_line(str(caught.value), server.home, tmp_path)
    assert part_of(tmp_path).read_bytes() == CONTENT[:3000]


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("status 404", "the server answers 404 Not Found"),
        ("status 403", "the server answers 403 Forbidden"),
        ("status 503", "the server answers 503 Service Unavailable, 3 times"),
        ("page", "the server sends 26 bytes of text/html, expected 300,000 bytes"),
        ("hang", "nothing came for 0.4 seconds"),
    ],
)
def test_a_server_that_does_not_give_the_file_is_named_with_the_reason(
    tmp_path: Path, action: str, reason: str
) -> None:
    part_of(tmp_path).write_bytes(CONTENT[:5000])
    with serving({FILE.name: CONTENT}, [action]) as server:
        with pytest.raises(ConvswapError) as caught:
            get(server.home, tmp_path, retry_policy=SHORT)
        assert_one_helpful_line(str(caught.value), server.home, tmp_path)
    assert reason in str(caught.value)
    assert part_of(tmp_path).read_bytes() == CONTENT[:5000]


def test_a_refused_connection_is_one_line_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    # The default patience pauses for 7.5 seconds in all, between five attempts.
    monkeypatch.setattr(time, "sleep", pauses.append)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        home = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        with pytest.raises(ConvswapError, match="Connection refused") as caught:
            fetch(FILE, home, tmp_path)
    assert pauses == []
    assert_one_helpful_line(str(caught.value), home, tmp_path)
    assert capsys.readouterr().err == ""


def test_a_name_that_no_server_has_is_one_line(tmp_path: Path) -> None:
    home = "http://no-such-host.invalid/"
    with pytest.raises(ConvswapError) as caught:
        get(home, tmp_path)
    assert_one_helpful_line(str(caught.value), home, tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(ConvswapError, match=r"cannot keep shirts\.gz in .*taken/folder: .*XDG_CACHE_HOME"):
        get("http://127.0.0.1:9/", tmp_path / "taken" / "folder")


def test_a_bar_is_drawn_on_a_terminal_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    with serving({FILE.name: CONTENT}, ["serve"]) as server:
        terminal, file = Terminal(), io.StringIO()
        monkeypatch.setattr(sys, "stderr", terminal)
        get(server.home, tmp_path / "terminal")
        monkeypatch.setattr(sys, "stderr", file)
        get(server.home, tmp_path / "file")
    assert "300.0/300.0 kB" in terminal.getvalue()
    assert file.getvalue() == f"downloading {server.home}{FILE.name} (300,000 bytes)\n"
