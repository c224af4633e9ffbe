r"""ARC: the attack on a randomised classifier that goes from one member's boundary to the next.

What counts against a ``Mixture`` is how many of its members (by weight) an image fools, and that
has no gradient; the gradient of a smooth stand-in can point away from every boundary within reach.
ARC walks to the boundaries themselves. Around the current image it keeps a perturbation ``t`` of
length β, and for each member, the likeliest first::

    ζ, u    distance and direction to the nearest face of the member's linearised cell around x' + t
    t'      t + b u, brought to length β;
    b is as much as takes t' across that face, where β reaches it
    t <- t' where the probability of a right answer does not rise

After the last member the image moves by ``t``, within ball and box.

Reference: Dbouk & Shanbhag, Adversarial Vulnerability of Randomized Ensembles, ICML 2022. Here the
walk starts at the clean image, and a face is measured from where it was linearised.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mrboost.ensemble import Classifier, Mixture
from mrboost.errors import InputError
from mrboost.threat import Threat, wide

from .base import InBall, check_step_size, takes_arrays
from .model import checked, column_gradients

_BEYOND = 0.05  # how far to step behind a face, in units of eps


@dataclass(frozen=True)
class ARC(InBall):
    """Fool as many members of a ``Mixture`` as one image can; it takes K backward
    passes a member and step.

    Args:
        eps: radius of the ball, in units of images in [0, 1].
        norm: "Linf", "L2" or "L1".
        steps: number of walks over the members.
        step_size: β, the length of a walk in the norm; a quarter of eps if not given.
    """

    steps: int = field(default=20, kw_only=True)
    step_size: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least_one("steps")
        check_step_size(self.step_size)

    @takes_arrays
    def __call__(
        self, model: Classifier, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        if not isinstance(model, Mixture):
            raise InputError(f"ARC attacks a Mixture, got {type(model).__name__}: use PGD, say")
        threat = self.threat
        beta = self.eps / 4 if self.step_size is None else self.step_size
        likeliest_first = model.weights.argsort(descending=True, stable=True).tolist()
        drawn = [i for i in likeliest_first if model.weights[i] > 0]
        with checked(model, x, y) as (x, y, _), torch.no_grad():
            x_adv, right = x, model.expected_correct(x, y)
            for _ in range(self.steps):
                centre, move = x_adv, torch.zeros_like(x)
                for i in drawn:
                    trial = _towards_boundary(model[i], centre, move, threat, beta)
                    reached = threat.project(centre + trial, x)
                    now = model.expected_correct(reached, y)
                    kept = now <= right
                    right = torch.where(kept, now, right)
                    move = torch.where(wide(kept, x), trial, move)
                    x_adv = torch.where(wide(kept, x), reached, x_adv)
        return x_adv


def _towards_boundary(
    member: Classifier, centre: Tensor, move: Tensor, threat: Threat, beta: float
) -> Tensor:
    """``move`` turned towards the nearest face of the member's cell around ``centre +
    move``, of length ``beta``."""
    distance, direction, normal = _nearest_face(member, centre + move, threat)
    # Of length at most β + b before it is brought to β, the sum is across the face (at
    # `from_centre` along the unit normal as seen from the centre) once b >= β distance / (β −
    # from_centre).
    from_centre = distance + (normal * move).flatten(1).sum(dim=1)
    enough = beta * distance / (beta - from_centre) + _BEYOND * threat.eps
    length = torch.where(from_centre < beta, enough, beta)
    turned = move + direction * wide(length, move)
    size = threat.distance(turned, torch.zeros_like(turned))
    return turned * wide(beta / size.clamp_(min=torch.finfo(turned.dtype).tiny), move)


def _nearest_face(member: Classifier, x: Tensor, threat: Threat) -> tuple[Tensor, Tensor, Tensor]:
    """Where the linearised member stops giving its label: distance, direction of unit length,
    normal of unit slope."""

    def gaps_of(images: Tensor) -> Tensor:
        logits = member(images)
        return logits.amax(dim=1, keepdim=True) - logits

    gaps, gradients = column_gradients(gaps_of, x)
    label = gaps.argmin(dim=1)
    nearest = torch.full_like(gaps[:, 0], torch.inf)
    direction, normal = torch.zeros_like(x), torch.zeros_like(x)
    for k, found in enumerate(gradients):
        # A member that detaches has no face in sight
        gradient = torch.zeros_like(x) if found is None else found
        towards = threat.step(-gradient, 1.0)
        slope = -(gradient * towards).flatten(1).sum(dim=1)  # the dual norm of the gradient
        distance = torch.where((label == k) | (slope == 0), torch.inf, gaps[:, k] / slope)
        closer = distance < nearest
        nearest = torch.where(closer, distance, nearest)
        direction = torch.where(wide(closer, x), towards, direction)
        normal = torch.where(wide(closer, x), -gradient / wide(slope, x), normal)
    return nearest, direction, normal
