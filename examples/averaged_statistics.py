"""What averaged weights need: BatchNorm statistics of their own, and a decay that
is reached gradually.

    python examples/averaged_statistics.py --data folder:cifar10-jpeg.tar.xz

A plain network of nine layers is trained at a high rate on adversarial images of one step,
photographs halved to 16×16. Printed: the accuracy on test images, clean and under PGD-10, of the
latest weights and of averages that differ in where their statistics are from: the latest ones
copied, averages of them, or gathered from the last batches.
"""

from __future__ import annotations

import argparse
from collections import deque
from copy import deepcopy

import mrboost  # isort: skip — before torch, as in the command: it says how idle threads wait
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from mrboost.attacks import PGD
from mrboost.recipes import OneCycle
from mrboost.training.ema import BATCHES, Average

WIDTHS = (16, 16, 16, 32, 32, 32, 64, 64)


def network(channels: int, classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for width, before in zip(WIDTHS, (channels, *WIDTHS), strict=False):
        stride = 2 if layers and width > before else 1
        layers += [
            nn.Conv2d(before, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        ]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTHS[-1], classes)
    )


def statistics(model: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in model.named_buffers() if value.is_floating_point()}


class Watched(Average):
    """With averages of the learner's statistics beside its own."""

    def __init__(self, learner: nn.Module, decay: float, gradual: bool) -> None:
        super().__init__(learner, decay)
        self.averaged = {name: value.clone() for name, value in statistics(learner).items()}
        if not gradual:
            self.steps.fill_(1e6)

    def follow(self, learner: nn.Module) -> None:
        for name, value in statistics(learner).items():
            self.averaged[name].lerp_(value, self.share())
        super().follow(learner)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--images", type=int, default=20_000, help="of the training ones")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--lr", type=float, default=0.4)
    parser.add_argument("--decay", type=float, default=0.999)
    options = parser.parse_args()
    torch.manual_seed(0)
    data = mrboost.data.load(options.data)
    parts = data.train[: options.images], data.test[:1000]
    x, test = (
        F.avg_pool2d(part.images(), 2) if part.x.shape[-1] == 32 else part.images()
        for part in parts
    )
    y, test_y, eps = parts[0].y, parts[1].y, data.defaults.eps
    learner = network(x.shape[1], data.num_classes)
    optimizer = torch.optim.SGD(learner.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    fixed, gradual = (Watched(learner, options.decay, gradual) for gradual in (False, True))
    seen: deque[Tensor] = deque(maxlen=BATCHES)
    attack, judge, rate = PGD(eps, steps=1, step_size=1.25 * eps), PGD(eps, steps=10), OneCycle()

    def accuracies(model: nn.Module, other: dict[str, Tensor] | None = None) -> str:
        model = deepcopy(model).eval()
        model.load_state_dict(model.state_dict() | (other or {}))
        attacked = judge(model, test, test_y)
        with torch.no_grad():
            right = [
                (model(images).argmax(dim=1) == test_y).float().mean()
                for images in (test, attacked)
            ]
        return " / ".join(f"{100 * share:.1f}" for share in right)

    kinds = [
        "same decay throughout: averaged",
        "gathered",
        "gradual decay: copied",
        "averaged",
        "gathered",
    ]
    print(f"| step | latest weights | {' | '.join(kinds)} |\n|" + "---|" * 7)
    for step in tqdm(range(options.steps)):
        for group in optimizer.param_groups:
            group["lr"] = options.lr * rate(step / options.steps)
        index = torch.randint(len(x), (128,))
        images = attack(learner, x[index], y[index])
        seen.append(images)
        loss = F.cross_entropy(learner.train()(images), y[index])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        fixed.follow(learner)
        gradual.follow(learner)
        if (step + 1) % (options.steps // 5) == 0:
            for kept in (fixed, gradual):
                for count, batch in enumerate(seen, start=1):
                    kept.gather(lambda module, batch=batch: module(batch), count)
            found = [
                accuracies(learner),
                accuracies(fixed.module, fixed.averaged),
                accuracies(fixed.module),
            ]
            found += [
                accuracies(gradual.module, other)
                for other in (statistics(learner), gradual.averaged, None)
            ]
            print(f"| {step + 1} | {' | '.join(found)} |", flush=True)


if __name__ == "__main__":
    main()
