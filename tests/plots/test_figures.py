"""What the figures show."""

from __future__ import annotations

import pytest

from mrboost.plots import figures


def _epochs(*rounds: int) -> list[dict[str, float]]:
    shares = {"clean": 0.9, "robust": 0.5, "train_robust": 0.6, "loss": 1.0, "seconds": 60.0}
    return [{"round": round_, **shares} for round_ in rounds]


CURVES = {
    "epochs": lambda runs: figures.training_curves(runs, "validation"),
    "loss": figures.loss_curves,
}


@pytest.mark.parametrize("curves", CURVES.values(), ids=CURVES)
def test_one_epoch_is_seen_and_a_long_path_leaves_room(curves) -> None:
    one, three = (curves({"at": [_epochs(*[1] * count)]}) for count in (1, 3))
    assert one.count("<use") > three.count("<use"), "a line needs two points: one is a marker"
    svg = curves({f"{'/somewhere' * 20}/seed{seed}": [_epochs(1, 1, 2)] for seed in (0, 1)})
    assert "<!-- …" in svg  # matplotlib warns without room
    assert "/somewhere/seed1" in svg
    assert "/somewhere" * 5 not in svg


def test_time_is_named() -> None:
    svg = figures.training_curves({"mrboost": [_epochs(1, 1, 2, 2)]}, "validation", over="minutes")
    assert "minutes of training" in svg
