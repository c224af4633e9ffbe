"""Models that only answer: functions of numpy arrays, and sessions of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mrboost.errors import InputError

Array = NDArray[Any]
_PRECISIONS = {"tensor(float16)": np.float16, "tensor(double)": np.float64}  # float32 else


@runtime_checkable
class Session(Protocol):
    """An ``InferenceSession`` of ONNX Runtime."""

    def get_inputs(self) -> Any: ...

    def run(self, output_names: Any, input_feed: Any) -> Any: ...


@dataclass(frozen=True)
class BlackBox:
    """A function of arrays as a model: it answers, and has no gradients.

    Args:
        function: images ``(N, …)`` as a numpy array to scores ``(N, K)`` or to labels ``(N,)``; or
            a session of ONNX Runtime with one input, of whose outputs the first ``(N, K)`` counts,
            or else the first.
        classes: of a function that gives labels, how many it tells apart; other labels count as
            one more class.
        tensors: the function takes tensors.

    Example:
        >>> import numpy as np
        >>> BlackBox(lambda x: x.reshape(len(x), -1)[:, :2])(torch.tensor([[[0.1, 0.9]]]))
        tensor([[0.1000, 0.9000]])
    """

    function: Any
    classes: int | None = None
    tensors: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            answers = self._asked(x.detach())
        if not isinstance(answers, Tensor):
            answers = np.asarray(answers)
            if answers.dtype.kind not in "fiub":
                problem = f"the model answers with an array of {answers.dtype}"
                raise InputError(f"{problem}: return logits (N, K) or labels (N,), as numbers")
            answers = torch.tensor(answers)
        answers = answers.to(x.device)
        if answers.ndim == 1:
            return self._one_hot(answers)
        return answers if answers.is_floating_point() else answers.float()

    def _asked(self, x: Tensor) -> Any:
        if self.tensors:
            return self.function(x)
        images = np.ascontiguousarray(x.cpu().numpy())
        if isinstance(self.function, Session):
            return _run(self.function, images)
        return np.asarray(self.function(images))

    def _one_hot(self, labels: Tensor) -> Tensor:
        if self.classes is None:
            raise InputError("the model gives labels: BlackBox(model, classes=10) says how many")
        known = (labels >= 0) & (labels < self.classes)
        columns = torch.where(known, labels, self.classes).long()
        return nn.functional.one_hot(columns, self.classes + 1).float()


def _run(session: Session, images: Array) -> Array:
    """The scores or labels that a session gives; in batches of the size that its graph is for."""
    (given, *_) = session.get_inputs()
    images = images.astype(_PRECISIONS.get(given.type, np.float32), copy=False)
    size = given.shape[0] if isinstance(given.shape[0], int) else len(images)
    found = []
    for first in range(0, len(images), size):
        part = images[first : first + size]
        more = np.repeat(images[:1], size - len(part), axis=0)
        outputs = session.run(None, {given.name: np.concatenate([part, more])})
        scores = (one for one in outputs if isinstance(one, np.ndarray) and one.ndim == 2)
        found.append(np.asarray(next(scores, outputs[0]))[: len(part)])
    return np.concatenate(found)


def as_model(model: Any, x: Tensor, classes: int) -> Any:
    """A function of arrays, a session, or a function of tensors to labels, as a model of tensors;
    any other model as it is.

    Args:
        model: what is evaluated. Of a function it is tried what it takes.
        x: images like those that it will see.
        classes: how many labels there are.
    """
    if isinstance(model, BlackBox):
        return model if model.classes else replace(model, classes=classes)
    if isinstance(model, Session):
        return BlackBox(model, classes)
    if isinstance(model, nn.Module | type) or not callable(model):
        return model
    image = x[:1].detach()
    answer = _tried(model, image.clone().requires_grad_(True))
    if isinstance(answer, Tensor):
        is_labels = answer.ndim == 1 and not answer.is_floating_point()
        return BlackBox(model, classes, tensors=True) if is_labels else model
    for tensors in (False, True):
        answer = _tried(model, image.clone() if tensors else image.cpu().numpy().copy())
        if isinstance(answer, np.ndarray | list) and np.asarray(answer).ndim in (1, 2):
            return BlackBox(model, classes, tensors)
    return model


def _tried(model: Callable[[Any], Any], x: Any) -> Any:
    """What a function answers; None where it raises, as one of arrays may for a tensor."""
    try:
        with torch.set_grad_enabled(isinstance(x, Tensor) and x.requires_grad):
            return model(x)
    except Exception:  # whatever it is, the checks of a model say it
        return None
