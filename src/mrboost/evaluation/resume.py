"""What an evaluation has finished, in files, so that an interrupted one can go on.

There is a file for each attack on each chunk of images. It counts only for the same weights and
answers of the model, the same images, and an attack with the same ``repr``; otherwise the attack
starts anew.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from mrboost.attacks import Attack, Classifier, attacked
from mrboost.attacks.model import networks
from mrboost.devices import device_of, exact_float32
from mrboost.errors import InputError
from mrboost.files import State, digest, read_tensors, write_tensors
from mrboost.progress import note
from mrboost.seeds import global_stream

from .inputs import Chunk

_OUR_FILES = re.compile(r"\.?\d+-\d+(-unfinished)?\.safetensors(\..+\.tmp)?")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_SAYS_TOO_LITTLE = re.compile(r"<locals>|<lambda>|object at 0x")
"""In the ``repr`` of an attack: a function or an object that may be another one next time."""


class Saved:
    """A folder of finished parts; without a folder, nothing is kept."""

    def __init__(self, folder: Path | None, *, resume: bool = False) -> None:
        self._folder = folder
        self._failed = False
        self._of_model = ""
        if folder is not None and not resume:
            for path in folder.glob("*"):
                if _OUR_FILES.fullmatch(path.name):
                    path.unlink(missing_ok=True)

    def key(self, attack: Attack | None, chunk: Chunk, fallen: Tensor) -> str | None:
        """Stands for model, images, attack and what has fallen before; None where nothing is kept,
        or where the ``repr`` of the attack does not tell it from others, as that of a lambda."""
        text = repr(attack)
        if self._folder is None or _SAYS_TOO_LITTLE.search(text):
            return None
        self._of_model = self._of_model or model_key(chunk.model, chunk.x)
        text = _ADDRESS.sub("", text)
        return digest(self._of_model, chunk.x, chunk.y, text, weights_key(attack), fallen)

    def get(self, name: str, key: str | None) -> State | None:
        """The part of this name, if it was put under the same key."""
        if self._folder is None or key is None:
            return None
        try:
            tensors, facts = read_tensors(self._folder / f"{name}.safetensors")
        except (InputError, OSError):  # damaged or not there: the attack runs again
            return None
        return tensors if facts.get("of") == key else None

    def put(self, name: str, key: str | None, tensors: State) -> None:
        if self._folder is None or key is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_tensors(self._folder / f"{name}.safetensors", tensors, {"of": key})
        except OSError as error:  # the figures can be had all the same
            if not self._failed:
                note(f"note: {self._folder} cannot be written ({error.strerror}): going on unsaved")
            self._failed = True

    def drop(self, name: str) -> None:
        if self._folder is not None:
            (self._folder / f"{name}.safetensors").unlink(missing_ok=True)


def model_key(model: Classifier, x: Tensor) -> str:
    """Stands for a model: the weights of its networks, and its answers to a few images.

    The answers tell functions apart that use the same networks. They are rounded, since their last
    digits change with the size of the batch.
    """
    device = device_of(model, otherwise=x.device)
    with attacked(model), torch.no_grad(), exact_float32(), global_stream(0, device):
        answers = model(x[:8].to(device, copy=True)).float().cpu()
    size = answers.abs().amax().clamp(min=1e-12)
    return digest(weights_key(model), (answers / size * 1e4).round(), (size.log2() * 1e3).round())


def weights_key(user: object) -> str:
    """A digest of all weights of the networks that a model or an attack uses."""
    states = [network.state_dict() for network in networks(user)]
    return digest(*(part for state in states for item in state.items() for part in item))
