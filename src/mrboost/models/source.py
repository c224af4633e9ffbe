"""Models from elsewhere: functions and networks in the user's files, timm, torchvision and Hugging
Face by name, and weights from files, none of which is a pickle that could run code."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import warnings
from collections.abc import Mapping
from copy import deepcopy
from inspect import Parameter, isclass, signature
from pathlib import Path
from textwrap import shorten
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from mrboost.errors import InputError, unknown_name
from mrboost.files import State, read_tensors, require_regular

from .black_box import Session

Shape = tuple[int, int, int]

# What each alias needs, and how it is installed
_PACKAGES = {"timm": "timm", "torchvision": "torchvision", "hf": "transformers"}
_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
# Where training scripts put the weights among other things that they save
_HOLDERS = ("state_dict", "model_state_dict", "model", "net")


class Logits(nn.Module):
    """A model whose answers hold the logits as one that returns them.

    Takes what a dictionary or an object calls ``logits``, and the first of a tuple or a list.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        output: Any = self.model(x)
        if isinstance(output, Mapping):
            if "logits" not in output:
                raise InputError(f"the model answers with {', '.join(output)}, and no 'logits'")
            output = output["logits"]
        elif isinstance(output, tuple | list):
            output = output[0]
        logits: Tensor = getattr(output, "logits", output)
        return logits


def is_alias(name: str) -> bool:
    """Whether a name is that of a model of timm, torchvision or Hugging Face."""
    package, _, model = name.partition(":")
    return package in _PACKAGES and _NAME.fullmatch(model) is not None


def from_alias(name: str, classes: int, *, pretrained: bool) -> nn.Module:
    """The model ``timm:NAME``, ``torchvision:NAME`` or ``hf:ORG/NAME``.

    Args:
        name: of the model.
        classes: how many it tells apart where it is not pretrained.
        pretrained: with the weights and the classes that its publisher gave it.
    """
    kind, _, model = name.partition(":")
    package: Any = _package(name, _PACKAGES[kind])
    own = {} if pretrained else {"num_classes": classes}
    network: nn.Module
    try:
        if kind == "timm":
            network = package.create_model(model, pretrained=pretrained, **own)
        elif kind == "torchvision":
            weights = "DEFAULT" if pretrained else None
            network = package.models.get_model(model, weights=weights, **own)
        elif pretrained:
            auto = package.AutoModelForImageClassification
            network = auto.from_pretrained(model, use_safetensors=True)
        else:
            config = package.AutoConfig.from_pretrained(model, num_labels=classes)
            network = Logits(package.AutoModelForImageClassification.from_config(config))
    except (OSError, RuntimeError, ValueError) as error:  # an unknown name, or no connection
        raise InputError(f"{name} is not to be had: {str(error).strip()[:200]}") from None
    return network


def _package(model: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:  # built for another version of torch
        reason = str(error).splitlines()[0]
        raise InputError(f"{model} needs {name} ({reason}): pip install {name}") from None


def import_module(module: str) -> ModuleType:
    """A module of the user's by its name, from the current folder, or by the path of its file."""
    path = Path(module)
    sys.path.insert(0, str(Path.cwd() / path.parent))
    try:
        if path.suffix == ".py":
            return _imported_file(path.absolute())
        return importlib.import_module(path.name.lstrip("."))
    except (ImportError, OSError, ValueError) as error:
        problem = f"cannot import {module!r} ({error})"
        raise InputError(f"{problem}: run from the folder of {path.stem}.py") from None
    finally:
        sys.path.pop(0)


def _imported_file(path: Path) -> ModuleType:
    """Exactly this file, though another module may have its name."""
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError("it is no file of Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if sys.modules.get(path.stem) is module:
            del sys.modules[path.stem]
        raise
    return module


def find(name: str) -> Any:
    """What ``file.py:function`` or ``package.module:function`` names; the module is imported."""
    place, _, function = name.rpartition(":")
    module = import_module(place)
    if not hasattr(module, function):
        raise unknown_name(f"function of {place}", function, filter(str.isidentifier, vars(module)))
    return getattr(module, function)


def call(target: Any, name: str, shape: Shape, classes: int) -> Any:
    """The model that ``target`` is or makes.

    A network is copied. A function or a class gets the parameters that are called ``shape``,
    ``classes`` or ``num_classes``, or two of other names in this order; it may also take none. A
    function of one other parameter is taken for the model itself, from images to logits.
    """
    if isinstance(target, nn.Module):
        return deepcopy(target)
    if not callable(target):
        raise InputError(f"{name} is a {type(target).__name__}: name a function or an nn.Module")
    known: dict[str, Any] = {"shape": shape, "classes": classes, "num_classes": classes}
    every = signature(target).parameters.values()
    given = {one.name: known[one.name] for one in every if one.name in known}
    variable = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    required = [one.name for one in every if one.default is one.empty and one.kind not in variable]
    if given.keys() >= set(required):
        made = target(**given)
    elif len(required) == 2 and not given:
        made = target(shape, classes)
    elif len(required) == 1 and not isclass(target):
        return target
    else:
        takes = ", ".join(required)
        raise InputError(
            f"{name} takes ({takes}): a model is a function or class of (shape, classes) or of "
            "nothing, an nn.Module, or a function from images to logits"
        )
    if not callable(made) and not isinstance(made, Session):
        raise InputError(f"{name} returned {type(made).__name__}: return an nn.Module")
    return made


def read_weights(path: str | Path) -> State:
    """The state dict in a safetensors file, or in one of ``torch.save`` if it holds nothing but
    tensors and plain values; ``module.`` before each name, from DataParallel, is left out."""
    path = Path(path)
    if not path.is_file():
        require_regular(path)
        raise InputError(f"there are no weights {str(path)!r}: give a safetensors or .pt file")
    found: Any
    if path.suffix == ".safetensors":
        found = read_tensors(path)[0]
    else:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a pickle, before it is refused
                found = torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception:  # of a damaged file, nearly anything
            raise InputError(
                f"{path} holds no weights alone, and unpickling more could run code: save "
                "model.state_dict(), best by safetensors.torch.save_file"
            ) from None
    for key in _HOLDERS:
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    entries = found.items() if isinstance(found, dict) else ()
    if not entries or not all(_is_weight(name, value) for name, value in entries):
        raise InputError(f"{path} holds no state dict: save model.state_dict()")
    prefix = "module." if all(key.startswith("module.") for key in found) else ""
    return {key.removeprefix(prefix): value for key, value in found.items()}


def _is_weight(name: object, value: object) -> bool:
    """Whether an entry is a tensor of values under a name."""
    if not isinstance(name, str) or not isinstance(value, Tensor):
        return False
    return value.layout == torch.strided and not (value.is_meta or value.is_quantized)


def fill(network: nn.Module, state: State, what: str, *, new_head: bool = False) -> list[str]:
    """Load weights into a network; refuses what does not fit in one line.

    Args:
        network: gets the weights.
        state: by name.
        what: the weights and the network, for the message.
        new_head: leave the last layer as it is where its weights are of other classes.

    Returns:
        The names of the weights that were left as they are.
    """
    mine = network.state_dict()
    head = [key for key in list(mine)[-2:] if new_head and key in state]
    left = {
        key: mine[key]
        for key in head
        if mine[key].shape != state[key].shape and mine[key].shape[1:] == state[key].shape[1:]
    }
    try:
        network.load_state_dict(state | left)
    except RuntimeError as error:
        problem = " ".join(str(error).partition(":")[2].split())
        raise InputError(f"{what}: {shorten(problem, 300)} Give its own") from None
    return sorted(left)


def normalization(text: str, channels: int) -> tuple[list[float], list[float]]:
    """Mean and deviation of each channel, from ``MEAN,STD``, from the means and then the deviations
    of all channels, or from ``imagenet``."""
    if text == "imagenet":
        text = "0.485,0.456,0.406,0.229,0.224,0.225"
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) == 2:
        numbers = [number for number in numbers for _ in range(channels)]
    mean, std = numbers[:channels], numbers[channels:]
    if len(numbers) != 2 * channels or not all(0 < value < float("inf") for value in std):
        raise InputError(
            f"normalize is MEAN,STD, or {channels} means and then {channels} positive deviations, "
            f"or imagenet, got {text!r}"
        )
    return mean, std


def returns_tensor(model: nn.Module, shape: Shape) -> bool:
    """Whether the model answers an image with a tensor; of one that takes no such image, what it
    would answer is not known."""
    try:
        with torch.no_grad():
            return isinstance(model(torch.full((1, *shape), 0.5)), Tensor)
    except (AssertionError, IndexError, RuntimeError, ValueError):
        return True
