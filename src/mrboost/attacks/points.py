"""What is known of each point while attacks run on it, and the judge of what they
offer: the model itself."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from mrboost.devices import exact_float32
from mrboost.errors import NanLogitsError
from mrboost.losses import margin
from mrboost.seeds import image_keys
from mrboost.speed.memory import halved
from mrboost.threat import wide

from .base import LOW_PRECISION, Classifier

_JUDGED, _FEW, _MANY = 512, 32, 256
State = dict[str, Tensor]
"""Of each lane: ``x``, ``y``, the ``found`` image, whether it is a ``hit``, the evaluations so
far ``t``, and more."""


@dataclass
class Points:
    """What is known of each point: the worst image found so far, its margin (> 0:
    misclassified), who broke it."""

    x: Tensor
    y: Tensor
    keys: Tensor
    ranking: Tensor
    """Classes by falling clean logit: the targets."""
    adv: Tensor
    margin: Tensor
    broken_by: Tensor
    """Number of the attack that broke the point, 0 for the clean image; −1 while
    it stands. On the CPU."""
    done: Tensor
    """Which jobs of the attack under way are finished, ``(N, jobs)``. On the CPU."""
    first: int = 0
    """The number that messages give to the first image."""
    lanes: State = field(default_factory=dict)
    """The state of the search under way, and as ``owner`` and ``job`` what runs in each lane."""
    most: int = 0
    """How many lanes the search under way fills; 0 before it has begun."""

    @classmethod
    def of(cls, model: Classifier, x: Tensor, y: Tensor, seed: int, first: int = 0) -> Points:
        numbers = torch.arange(first, first + len(x))
        logits = torch.cat(
            [
                judge(model, x[part.to(x.device) - first], "", part)
                for part in torch.split(numbers, _JUDGED)
            ]
        )
        wrong = logits.argmax(dim=1) != y
        return cls(
            x=x,
            y=y,
            keys=image_keys(seed, x),
            ranking=logits.argsort(dim=1, descending=True),
            adv=x.clone(),
            margin=margin(logits, y, reduction="none"),
            broken_by=torch.where(wrong, 0, -1).cpu(),
            done=torch.zeros(len(x), 0, dtype=torch.bool),
            first=first,
        )

    @property
    def alive(self) -> Tensor:
        return self.broken_by < 0

    def learn(self, who: Tensor, images: Tensor, logits: Tensor, number: int) -> Tensor:
        """Images offered by attack ``number`` for the points ``who``: keep the worst, and
        say which are broken."""
        point = who.to(images.device)
        margins = margin(logits, self.y[point], reduction="none")
        # Not for two that are infinite
        broken = (logits.argmax(dim=1) != self.y[point]) & (margins >= 0)
        taken = broken | (margins > self.margin[point])
        self.adv[point] = torch.where(wide(taken, images), images, self.adv[point])
        self.margin[point] = torch.where(taken, margins, self.margin[point])
        broken = broken.cpu()
        self.broken_by[who[broken]] = number
        return broken

    def pending(self, owner: Tensor, job: Tensor) -> Tensor:
        """Pairs (job, point) that stand, are not finished and run in no lane, low jobs first."""
        waiting = ~self.done & self.alive[:, None]
        waiting[owner, job] = False
        return waiting.T.nonzero()

    def saved(self) -> State:
        """What ``restore`` needs to go on."""
        known = {name: getattr(self, name) for name in ("adv", "margin", "broken_by", "done")}
        known["most"] = torch.tensor(self.most)
        return known | {f"lanes.{name}": value for name, value in self.lanes.items()}

    def restore(self, saved: State) -> None:
        for name, tensor in saved.items():
            if name == "most":
                self.most = int(tensor)
            elif name.startswith("lanes."):
                self.lanes[name.removeprefix("lanes.")] = tensor
            elif hasattr(self, name):
                setattr(self, name, tensor.to(getattr(self, name).device))


def mistaken(logits: Tensor, y: Tensor) -> Tensor:
    """Whether an image is misclassified, or its logits are NaN, which is for the judge to see."""
    return (logits.argmax(dim=1) != y) | logits.isnan().any(dim=1)


def judge(model: Classifier, images: Tensor, attack: str, who: Tensor) -> Tensor:
    """The model's own logits on images of these numbers; they must be numbers themselves.

    Where the first two are equal but for the last bits, which change with the size of the batch,
    the image is judged alone. Of a model that answers in low precision (under autocast, say) any
    lead counts, as if it computed in it.
    """
    with torch.no_grad(), exact_float32():
        logits = _answers(model, images, _batch_size(model, images))
    bad = logits.isnan().any(dim=1)
    if bad.any():
        raise NanLogitsError(int(who[int(bad.nonzero()[0])]), attack)
    logits = logits.float() if logits.dtype in LOW_PRECISION else logits
    first, second = logits.topk(2, dim=1).values.unbind(dim=1)
    close = first - second <= 16 * torch.finfo(logits.dtype).eps * (first.abs() + second.abs())
    for i in close.nonzero().squeeze(1).tolist() if len(images) > 1 else ():
        logits[i] = judge(model, images[i : i + 1], attack, who[i : i + 1])[0]
    return logits


def _batch_size(model: Classifier, images: Tensor) -> int:
    """All images at once; on a CUDA device one of two sizes, since it takes longer to prepare for a
    new size than to compute it."""
    if len(images) == 1 or not images.is_cuda or not isinstance(model, nn.Module):
        return len(images)
    return _FEW if len(images) <= _FEW else _MANY


def _answers(model: Classifier, images: Tensor, size: int) -> Tensor:
    """The logits, in batches of ``size``, or of less where there is no memory for so many.

    The last batch is filled up with copies of the first image.
    """
    logits: list[Tensor] = []
    position = 0
    while position < len(images):
        part = images[position : position + size]
        more = images[:1].expand(size - len(part), *images.shape[1:])
        try:
            # Copies of both: a model may work in place, and answer in the same place each time.
            logits.append(model(torch.cat([part, more])).clone())
        except torch.OutOfMemoryError as error:
            size = halved(size, error)
            continue
        position += size
    return torch.cat(logits)[: len(images)]
