"""What is known of each image while searches run on it, and the judge of what they find: the
model itself."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from mrboost.devices import exact_float32
from mrboost.errors import NanLogitsError
from mrboost.losses import margin
from mrboost.seeds import image_keys
from mrboost.speed.graphs import State
from mrboost.speed.memory import halved
from mrboost.threat import wide

from .model import LOW_PRECISION, Classifier

_CLEAN_BATCH = 512
_CUDA_BATCHES = (32, 256)
_SAVED = ("adv", "margin", "broken_by", "done")


@dataclass
class Points:
    """What is known of each image: the worst version found so far, and which attack broke it.

    Attributes:
        x, y: images and labels.
        keys: a number for each image, from which its random numbers follow.
        ranking: classes by falling logit of the clean image; targets are taken in this order.
        adv: the worst version found so far.
        margin: its margin; positive where it is misclassified.
        broken_by: number of the attack that broke the image, 0 if the clean one is misclassified,
            −1 while it stands. On the CPU.
        done: which jobs of the search under way are finished, ``(N, jobs)``. On the CPU.
        first: the number that messages give to the first image.
        aim: the label that each image is to get; None where any mistake counts.
        lanes: the state of the search under way, with ``owner`` and ``job`` of each lane.
        most: how many lanes the search under way fills; 0 before it has begun.
    """

    x: Tensor
    y: Tensor
    keys: Tensor
    ranking: Tensor
    adv: Tensor
    margin: Tensor
    broken_by: Tensor
    done: Tensor
    first: int = 0
    aim: Tensor | None = None
    lanes: State = field(default_factory=dict)
    most: int = 0

    @classmethod
    def of(
        cls,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        seed: int,
        first: int = 0,
        aim: Tensor | None = None,
    ) -> Points:
        """The clean images, as the model answers them."""
        numbers = torch.arange(first, first + len(x))
        parts = zip(*(torch.split(one, _CLEAN_BATCH) for one in (x, numbers)), strict=True)
        logits = torch.cat([judge(model, images, "", number) for images, number in parts])
        return cls(
            x=x,
            y=y,
            keys=image_keys(seed, x),
            ranking=logits.argsort(dim=1, descending=True),
            adv=x.clone(),
            margin=_lead(logits, y, aim),
            broken_by=torch.where(_reached(logits, y, aim), 0, -1).cpu(),
            done=torch.zeros(len(x), 0, dtype=torch.bool),
            first=first,
            aim=aim,
        )

    @property
    def alive(self) -> Tensor:
        """Which images stand. On the CPU."""
        return self.broken_by < 0

    def learn(self, who: Tensor, images: Tensor, logits: Tensor, number: int) -> Tensor:
        """Keep the worse of what is known and what attack ``number`` found.

        Args:
            who: the indices of the points; no point twice.
            images, logits: what was found for each, and the model's answer.
            number: of the attack.

        Returns:
            Which of the images are misclassified. On the CPU.
        """
        point = who.to(images.device)
        goal = (self.y[point], None if self.aim is None else self.aim[point])
        margins = _lead(logits, *goal)
        # The second condition is false for a margin of two infinite logits, which is NaN.
        broken = _reached(logits, *goal) & (margins >= 0)
        worse = broken | (margins > self.margin[point])
        self.adv[point] = torch.where(wide(worse, images), images, self.adv[point])
        self.margin[point] = torch.where(worse, margins, self.margin[point])
        broken = broken.cpu()
        self.broken_by[who[broken]] = number
        return broken

    def saved(self) -> State:
        """What ``restore`` needs to go on."""
        lanes = {f"lanes.{name}": value for name, value in self.lanes.items()}
        found = {name: getattr(self, name) for name in _SAVED}
        return lanes | found | {"most": torch.tensor(self.most)}

    def restore(self, saved: State) -> None:
        """Go on from what ``saved`` returned, for the same images; other entries are ignored."""
        for name in _SAVED:
            setattr(self, name, saved[name].to(getattr(self, name).device))
        self.most = int(saved["most"])
        lanes = [name.removeprefix("lanes.") for name in saved if name.startswith("lanes.")]
        self.lanes = {name: saved[f"lanes.{name}"] for name in lanes}


def mistaken(logits: Tensor, state: State) -> Tensor:
    """Whether an image is misclassified, or gets the label that the attack is to reach; also where
    logits are NaN, which the judge refuses."""
    return _reached(logits, state["y"], state.get("aim")) | logits.isnan().any(dim=1)


def _reached(logits: Tensor, y: Tensor, aim: Tensor | None) -> Tensor:
    label = logits.argmax(dim=1)
    return label != y if aim is None else label == aim


def _lead(logits: Tensor, y: Tensor, aim: Tensor | None) -> Tensor:
    """By how much an image is misclassified, or gets the label aimed at; at most 0 if it does
    not."""
    return margin(logits, y, "none") if aim is None else -margin(logits, aim, "none")


def judge(model: Classifier, images: Tensor, attack: str, who: Tensor) -> Tensor:
    """The model's own logits, in its own precision; NaN is refused.

    Where the two largest are equal but for the last bits, which change with the size of the batch,
    the image is judged alone. Logits in low precision (of a model under autocast, say) are
    converted to float32, so that any difference between them counts.

    Args:
        attack: the name that a message gives to the attack.
        who: the numbers that it gives to the images.
    """
    with torch.no_grad(), exact_float32():
        logits = _answers(model, images)
    bad = logits.isnan().any(dim=1)
    if bad.any():
        raise NanLogitsError(int(who[int(bad.nonzero()[0])]), attack)
    if logits.dtype in LOW_PRECISION:
        logits = logits.float()
    if len(images) == 1:
        return logits
    first, second = logits.topk(2, dim=1).values.unbind(dim=1)
    close = first - second <= 16 * torch.finfo(logits.dtype).eps * (first.abs() + second.abs())
    for i in close.nonzero().squeeze(1).tolist():
        logits[i] = judge(model, images[i : i + 1], attack, who[i : i + 1])[0]
    return logits


def _answers(model: Classifier, images: Tensor) -> Tensor:
    """The logits: of all images at once, or in smaller batches where there is no memory for so
    many.

    On a CUDA device batches have one of two sizes, since it takes longer to prepare for a new size
    than to compute it; the last one is filled up with copies of the first image.
    """
    size = len(images)
    if size > 1 and images.is_cuda and isinstance(model, nn.Module):
        small, large = _CUDA_BATCHES
        size = small if size <= small else large
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
