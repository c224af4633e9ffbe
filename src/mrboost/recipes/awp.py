"""Adversarial weight perturbation (AWP): the gradient of a step is taken at perturbed weights.

With L the loss of the perturbed batch and w the weights of one layer, each step of training is::

    v = γ ‖w‖ ∇L(w) / ‖∇L(w)‖        for every layer, from one extra forward and backward pass
    w ← SGD step from w along ∇L(w + v)

As in the published code, parameters of more than one dimension are moved; biases and BatchNorm's
parameters are not. The extra pass leaves BatchNorm's statistics as they are, and the weights are
restored from copies, not by adding and subtracting. The published code takes the step before it
moves the weights back, so that its weight decay sees w + v.

Wu et al., "Adversarial Weight Perturbation Helps Robust Generalization", NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mrboost.attacks import Classifier
from mrboost.errors import InputError


@dataclass(frozen=True)
class AWP:
    """Perturb the weights of each layer by ``gamma`` times their norm.

    Args:
        gamma: published: 0.01 with adversarial training, 0.005 with TRADES.
        begin: the share of the training after which this starts.
    """

    gamma: float = 0.01
    begin: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.gamma < 1:
            raise InputError(f"awp is a share between 0 and 1, got {self.gamma}: 0.01 is usual")

    @contextmanager
    def shifted(
        self,
        learner: nn.Module,
        loss_of: Callable[[Classifier], Tensor],
        progress: Tensor | None = None,
        agreed: Callable[[Tensor], Tensor] = lambda gradient: gradient,
    ) -> Iterator[None]:
        """Within this context the learner has perturbed weights, after it those from before.

        Args:
            learner: the network whose weights are moved.
            loss_of: the loss that the perturbation raises, of a classifier that computes with the
                learner's weights and leaves its buffers alone.
            progress: the share of the training that is done; None counts as all of it.
            agreed: averages a gradient over processes.
        """
        weights = [p for p in learner.parameters() if p.ndim > 1 and p.requires_grad]
        buffers = {name: buffer.clone() for name, buffer in learner.named_buffers()}

        def with_own_buffers(x: Tensor) -> Tensor:
            logits: Tensor = torch.func.functional_call(learner, buffers, (x,))
            return logits

        with torch.enable_grad():
            loss = loss_of(with_own_buffers)
            found = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
        gradients = [agreed(gradient) for gradient in found]
        gamma = self.gamma if progress is None else self.gamma * (progress >= self.begin)
        saved = [w.detach().clone() for w in weights]
        try:
            with torch.no_grad():
                for w, gradient in zip(weights, gradients, strict=True):
                    w.add_(gradient * (gamma * w.norm() / (gradient.norm() + 1e-20)))
            torch.clear_autocast_cache()  # it holds low-precision copies of the weights
            yield
        finally:
            with torch.no_grad():
                for w, before in zip(weights, saved, strict=True):
                    w.copy_(before)
            torch.clear_autocast_cache()
