"""Files that are whole or not there, and what they are not put in the place of."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mrboost.errors import InputError
from mrboost.files import naming, require_inside, write_texts


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
def test_a_page_takes_the_place_of_no_device(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is not a regular file"):
        write_texts({tmp_path / "pipe": "page"})
    assert (tmp_path / "pipe").is_fifo()
    write_texts({tmp_path / "new" / "page.html": "page"})
    assert (tmp_path / "new" / "page.html").read_text() == "page"


def test_what_links_lead_out_of_a_folder(tmp_path: Path) -> None:
    folder, other = tmp_path / "folder", tmp_path / "other"
    for made in (folder / "part", other):
        made.mkdir(parents=True)
    (folder / "within").symlink_to(folder / "part")
    (folder / "out").symlink_to(other)
    (folder / "loop").symlink_to(folder / "loop")
    for name in ("part", "within", "not there", "part/not there", "loop"):
        require_inside(folder / name, folder)
    for name in ("out", "out/deeper", "../other"):
        with pytest.raises(InputError, match="leads out of"):
            require_inside(folder / name, folder)
    (tmp_path / "link").symlink_to(folder)  # the user's own, to the whole folder
    require_inside(tmp_path / "link" / "part", tmp_path / "link")


def test_errors_of_the_system_name_their_file() -> None:
    with (
        pytest.raises(OSError, match="No space left on device: 'a/b'") as caught,
        naming(Path("a/b")),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(PermissionError, match="'other'"), naming(Path("a/b")):
        raise OSError(errno.EACCES, "Permission denied", "other")
