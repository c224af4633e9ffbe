"""An average of the weights of a training, kept in the place of the latest ones."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

# The last ones of an epoch, from which an average gathers its statistics
BATCHES = 50
# An average looks back no further than about a SHARE-th of the steps so far, however slow its decay
SHARE = 9


class Average:
    """An exponential average of a learner's weights, with BatchNorm statistics of its own.

    After t steps the decay is t / (t + 9), or ``decay`` once that is less: early weights are soon
    forgotten, in short trainings too.

    Weights that differ average to smaller ones, the smaller the higher the rate of learning. The
    learner's statistics, latest or averaged, are then too large for them (docs/design.md has the
    figures), so the average sees the last batches of each epoch itself. Host and device never wait
    for each other in it.
    """

    def __init__(self, learner: nn.Module, decay: float) -> None:
        self.module = deepcopy(learner).requires_grad_(False)
        self.decay = decay
        self.steps = torch.zeros((), device=next(learner.parameters()).device)
        norms = [m for m in self.module.modules() if isinstance(m, _BatchNorm)]
        self._norms = [norm for norm in norms if norm.track_running_stats]
        self._gathered = {id(buffer) for norm in norms for buffer in norm.buffers()}

    def share(self) -> Tensor:
        """What the next weights count in the average."""
        return 1 - (self.steps / (self.steps + SHARE)).clamp(max=self.decay)

    @torch.no_grad()
    def follow(self, learner: nn.Module) -> None:
        """Take the learner's next weights into the average; statistics stay
        what was gathered last."""
        share = self.share()
        of_both = ((*module.parameters(), *module.buffers()) for module in (self.module, learner))
        for mine, theirs in zip(*of_both, strict=True):
            if id(mine) in self._gathered:
                continue
            if mine.is_floating_point():
                mine.lerp_(theirs, share.to(mine.dtype))
            else:
                mine.copy_(theirs)
        self.steps += 1

    @torch.no_grad()
    def gather(self, see: Callable[[nn.Module], object], batch: int) -> None:
        """Let a batch, shown to the module by ``see``, count in its statistics: their mean
        over batches 1, 2, ….

        Where a batch takes several passes, the last of them count a little more.
        """
        if not self._norms:
            return
        for norm in self._norms:
            norm.momentum = 1 / batch
        self.module.train()
        see(self.module)
