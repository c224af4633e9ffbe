"""What an evaluation has finished so far, in files, so that an interrupted one can go on."""

from __future__ import annotations

import errno
import re
from pathlib import Path

from mrboost.errors import InputError
from mrboost.files import State, read_tensors, write_tensors
from mrboost.progress import note

_NAMES = re.compile(r"\.?\d+-\d+(-unfinished)?\.safetensors(\..+\.tmp)?")


class Parts:
    """One file for each finished part. A part counts only for the same model, images and
    attack: ``of`` says which."""

    def __init__(self, folder: Path | None, *, resume: bool = False) -> None:
        self._folder, self._full = folder, False
        if folder is not None and not resume:
            for path in folder.glob("*"):
                if _NAMES.fullmatch(path.name):  # ours, and nothing else
                    path.unlink(missing_ok=True)

    def get(self, name: str, of: str) -> State | None:
        if self._folder is None or not (path := self._path(name)).is_file():
            return None
        try:
            tensors, facts = read_tensors(path)
        except (InputError, OSError):
            return None  # damaged, or just removed: made again
        return tensors if facts.get("of") == of else None

    def put(self, name: str, of: str, tensors: State) -> None:
        if self._folder is None:
            return
        for attempt in range(5):
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                write_tensors(self._path(name), tensors, {"of": of})
                return
            except (FileNotFoundError, FileExistsError):
                # Another process has just removed the folder
                if attempt == 4:
                    raise
            except OSError as error:  # the figures can be had all the same
                if error.errno not in (
                    errno.ENOSPC,
                    errno.EDQUOT,
                    errno.EACCES,
                    errno.EPERM,
                    errno.EROFS,
                ):
                    raise
                if not self._full:
                    note(
                        f"note: {self._folder} does not take what is finished "
                        f"({error.strerror}): it goes on unsaved"
                    )
                self._full = True
                return

    def drop(self, name: str) -> None:
        if self._folder is not None:
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{name}.safetensors"
