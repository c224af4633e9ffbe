"""Why averaged weights need averaged BatchNorm statistics: the same training on digits with both ways.

python examples/averaged_statistics.py
"""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path
from unittest import mock

import mrboost
from mrboost import training


def main() -> None:
    data, real = mrboost.data.load("digits"), training.AveragedModel

    def build(*arguments: object, averaged: bool, **options: object) -> object:
        return real(*arguments, **{**options, "use_buffers": averaged})

    for averaged in (False, True):
        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.object(training, "AveragedModel", partial(build, averaged=averaged)),
        ):
            out = Path(folder) / "run"
            mrboost.boost("at", data, schedule="one-cycle", ema=0.98, lr=0.5, epochs=14, out=out, device="cpu")
            rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        clean = ", ".join(f"{100 * row['clean']:.0f}" for row in rows)
        print(f"{'averaged' if averaged else 'copied'} statistics, held-out clean accuracy by epoch, %: {clean}")


if __name__ == "__main__":
    main()
