"""How sharp should the exponential sampler be? One round on digits for several η, with and
without example weights.

python examples/exponential_digits.py
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import mrboost
from mrboost import recipes
from mrboost.recipes import Exp


def main() -> None:
    data = mrboost.data.load("digits")
    print(
        "| η | weights over examples | clean | PGD-20 | acceptance | effective share of the batch |"
    )
    print("|---|---|---|---|---|---|")
    for reweight in (True, False):
        for eta in (0.5, 1.0, 4.0, 16.0, 64.0):
            recipe = replace(recipes.get("mrboost-exp"), sampler=Exp(eta=eta, reweight=reweight))
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "run"
                model = mrboost.boost(recipe, data, rounds=1, epochs=8, out=out, device="cpu")
                last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
            result = mrboost.evaluate(model, data.test.images(), data.test.y, "pgd-20", eps=0.1)
            print(
                f"| {eta:g} | {'as in P_t' if reweight else 'none'} | "
                f"{result['clean'].accuracy:.1%} | {result['pgd-20'].accuracy:.1%} | "
                f"{last['acceptance']:.2f} | {last['effective_share']:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
