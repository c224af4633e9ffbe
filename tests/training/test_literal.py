"""The one training loop beside a literal one: every ingredient of SGD and of the
inner attack, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mrboost
from mrboost import recipes
from mrboost.data import Augment, Batches, Split
from mrboost.devices import make_fabric
from mrboost.recipes.config import Config, resolve
from mrboost.seeds import derive
from mrboost.training import fit

BATCH, EPOCHS, EPS, STEP, LR, DECAY, CLIP = 6, 3, 8 / 255, 2 / 255, 0.3, 0.02, 1.5


class Double(Batches):
    def epoch(self, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:  # type: ignore[override]
        for x, y in super().epoch(generator):
            yield x.double(), y


def network() -> nn.Sequential:
    torch.manual_seed(3)
    body = (
        nn.Conv2d(3, 5, 3, padding=1),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(5 * 36, 4),
    )
    return nn.Sequential(*body).double()


def settings(images: Tensor, labels: Tensor) -> Config:
    recipe = replace(recipes.AT, weight_decay=DECAY, steps=3, clip=CLIP)
    data = mrboost.data.from_tensors(images, labels, images, labels)
    config = resolve(
        recipe,
        data,
        epochs=EPOCHS,
        batch_size=BATCH,
        lr=LR,
        eps=EPS,
        step_size=STEP,
        schedule="one-cycle",
        validation=1,
        fast="off",
        seed=7,
        model="cnn-digits",
    )
    return replace(config, augment=Augment(padding=2, flip=True))


def test_a_training_is_what_a_literal_loop_does(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    images, labels = torch.randint(0, 256, (16, 3, 6, 6), dtype=torch.uint8), torch.arange(16) % 4
    config, ours, theirs = settings(images, labels), network(), network()
    monkeypatch.setattr(fit, "Batches", Double)
    monkeypatch.setattr(fit, "_validate", lambda *_: (0.0, 0.0))
    split = Split(images, labels)
    fit.fit(ours, [], split, split, config, fabric=make_fabric("cpu"))

    optimizer = torch.optim.SGD(theirs.parameters(), momentum=0.9, weight_decay=DECAY, lr=1.0)
    number, of, orders = 0, 3 * EPOCHS, []
    for epoch in range(EPOCHS):
        draws = torch.Generator().manual_seed(derive(7, "epoch", 1, epoch))
        orders.append(torch.randperm(16, generator=draws))
        for chosen in (orders[-1][:5], orders[-1][5:10], orders[-1][10:]):
            top, left = torch.randint(5, (2, len(chosen)), generator=draws)
            mirrored = torch.rand(len(chosen), generator=draws) < 0.5
            x = torch.stack(
                [
                    torch.flip(crop, (2,)) if flip else crop
                    for image, t, s, flip in zip(
                        images[chosen].float() / 255, top, left, mirrored, strict=True
                    )
                    for crop in [F.pad(image, (2, 2, 2, 2))[:, t : t + 6, s : s + 6]]
                ]
            ).double()
            y = labels[chosen]
            theirs.eval()
            x_adv = (x + (2 * torch.rand(x.shape, generator=draws, dtype=x.dtype) - 1) * EPS).clamp(
                0, 1
            )
            for _ in range(3):
                x_adv = x_adv.detach().requires_grad_(True)
                (gradient,) = torch.autograd.grad(F.cross_entropy(theirs(x_adv), y), x_adv)
                x_adv = (x + (x_adv + STEP * gradient.sign() - x).clamp(-EPS, EPS)).clamp(0, 1)
            theirs.train()
            optimizer.zero_grad()
            F.cross_entropy(theirs(x_adv.detach()), y).backward()
            nn.utils.clip_grad_norm_(theirs.parameters(), CLIP)
            progress = number / of
            optimizer.param_groups[0]["lr"] = LR * (
                progress / 0.3 if progress < 0.3 else (1 - progress) / 0.7
            )
            optimizer.step()
            number += 1

    assert len({tuple(order.tolist()) for order in orders}) == EPOCHS
    begun = network().state_dict()
    for name, value in theirs.state_dict().items():
        assert not torch.equal(value, begun[name]), name
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-9, atol=1e-11)
