"""Why averaged weights need averaged BatchNorm statistics: the same training on digits with both ways.

python examples/averaged_statistics.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from unittest import mock

from torch import nn

import mrboost
from mrboost import training
from mrboost.checkpoint import Average

EPOCHS = 14


class Copied(Average):
    """An average of the weights with the statistics of the latest ones."""

    def follow(self, learner: nn.Module) -> None:
        super().follow(learner)
        for mine, theirs in zip(self.module.buffers(), learner.buffers(), strict=True):
            mine.copy_(theirs)


def main() -> None:
    data = mrboost.data.load("digits")
    for name, kind in (("copied", Copied), ("averaged", Average)):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(training, "Average", kind):
            out = Path(folder) / "run"
            mrboost.boost("at", data, schedule="one-cycle", ema=0.98, lr=0.5, epochs=EPOCHS, out=out, device="cpu")
            rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        clean = ", ".join(f"{100 * row['clean']:.0f}" for row in rows)
        print(f"{name} statistics, held-out clean accuracy by epoch, %: {clean}")


if __name__ == "__main__":
    main()
