"""Attacks on numpy arrays: images and labels as ``evaluate`` takes them, and arrays back."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
from torch import Tensor

from mrboost.data import as_tensors
from mrboost.devices import device_of, dtype_of

from .model import Classifier, check_dense

F = TypeVar("F", bound=Callable[..., Any])


def takes_arrays(call: F) -> F:
    """The ``__call__`` of an attack for arrays (or lists, or one-hot labels) too.

    Of an array the attack sees a tensor on the model's device and in its precision, and what it
    finds is given back as an array of the same type.
    """

    @wraps(call)
    def with_arrays(self: object, model: Classifier, x: Any, y: Any, **options: Any) -> Any:
        labels = {"y": y}
        if options.get("targets") is not None:
            labels["targets"] = options.pop("targets")
        if not all(isinstance(value, Tensor) for value in (x, *labels.values())):
            for name, value in labels.items():
                images, labels[name] = as_tensors(x, value)
        if isinstance(x, Tensor):
            check_dense(x, *labels.values())
            on = {name: value.to(x.device) for name, value in labels.items()}
            return call(self, model, x, **on, **options)
        device = device_of(model)
        if images.is_floating_point():
            images = images.to(dtype_of(model, images.dtype))
        on = {name: value.to(device) for name, value in labels.items()}
        found = call(self, model, images.to(device), **on, **options)
        return found.cpu().numpy().astype(np.asarray(x).dtype)

    return cast(F, with_arrays)
