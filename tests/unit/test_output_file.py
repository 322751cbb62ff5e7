"""Result files are written atomically, through links, and into pipes and devices."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from convswap.errors import ConvswapError
from convswap.output.files import check_writable, write_text


def test_a_regular_file_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    file = tmp_path / "result.json"
    file.write_text("old")
    os.link(file, tmp_path / "hard_link")
    write_text(file, "new")
    assert file.read_text() == "new"
    assert (tmp_path / "hard_link").read_text() == "old"  # replaced, not overwritten
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hard_link", "result.json"]


def test_bytes_of_a_file_name_that_are_no_text_are_written_as_question_marks(tmp_path):
    file = tmp_path / "result"
    write_text(file, os.fsdecode(b"net\xff.onnx: \xc3\xa9"))
    assert file.read_bytes() == b"net?.onnx: \xc3\xa9"


@pytest.mark.parametrize("old", ["old", None], ids=["file", "nothing yet"])
def test_a_link_is_followed(tmp_path, old):
    (tmp_path / "elsewhere").mkdir()
    file, link = tmp_path / "elsewhere" / "real.json", tmp_path / "link.json"
    if old is not None:
        file.write_text(old)
    link.symlink_to(Path("elsewhere") / "real.json")
    write_text(link, "new")
    assert link.is_symlink()
    assert file.read_text() == "new"


def test_a_link_into_a_folder_that_is_not_there_is_refused(tmp_path):
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "absent" / "real.json")
    with pytest.raises(ConvswapError, match=r"link\.json': there is no folder '.*absent'; make it first"):
        check_writable(link)


def test_a_named_pipe_is_written_to_and_stays_one(tmp_path):
    pipe, received = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()))
    reader.start()
    check_writable(pipe)
    write_text(pipe, "result")
    reader.join()
    assert received == ["result"]
    assert pipe.is_fifo()


def test_a_device_stays_one_even_for_root(tmp_path):
    device = tmp_path / "null"
    try:
        # The test's own device: a fault must not replace the machine's /dev/null.
        os.mknod(device, 0o666 | 0o020000, os.makedev(1, 3))
        device.write_bytes(b"")
    except OSError:
        pytest.skip("this user may make no device")
    check_writable(device, device)  # two results may go to the same device
    write_text(device, "result")
    assert device.is_char_device()


def test_a_folder_that_takes_no_files_is_refused_even_for_root():
    expected = r"^cannot write '/proc/r\.json': the folder '/proc' is not writable \(.+\); name another$"
    with pytest.raises(ConvswapError, match=expected):
        check_writable("/proc/r.json")


@pytest.mark.parametrize("name", ["in.npz", "link.npz"])
def test_two_files_that_are_one_are_refused_with_the_roles_of_both(tmp_path, name):
    (tmp_path / "in.npz").write_bytes(b"values")
    (tmp_path / "link.npz").symlink_to("in.npz")
    with pytest.raises(ConvswapError) as raised:
        check_writable(tmp_path / name, {"what --inputs reads": [tmp_path / "in.npz"]}, "--json")
    assert str(raised.value) == (
        f"cannot write '{tmp_path / name}': it is what --inputs reads, and --json would replace it; "
        "choose another name"
    )


def test_a_name_that_is_too_long_is_refused_in_one_line(tmp_path):
    name = "n" * 300
    with pytest.raises(ConvswapError, match=f"^cannot write '.*{name}': File name too long$"):
        check_writable(tmp_path / name)
