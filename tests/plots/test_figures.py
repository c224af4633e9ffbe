"""What the figures show."""

from __future__ import annotations

from mrboost.plots import figures


def _row(round_: int, seconds: float = 60.0) -> dict[str, float]:
    return {
        "round": round_,
        "clean": 0.9,
        "robust": 0.5,
        "train_robust": 0.6,
        "loss": 1.0,
        "seconds": seconds,
    }


def test_one_epoch_is_seen() -> None:
    one, three = ({"at": [_row(1)] * count} for count in (1, 3))
    for draw in (lambda rows: figures.training_curves(rows, "validation"), figures.loss_curves):
        assert draw(one).count("<use") > draw(three).count("<use"), (
            "a line needs two points, so one is a marker"
        )


def test_time_runs_on_from_round_to_round() -> None:
    rows = [_row(1), _row(1), _row(2, 120.0), _row(2, 120.0)]
    assert figures._along(rows, "minutes") == [1.0, 2.0, 4.0, 6.0]
    assert figures._along(rows, "epoch") == [1, 2, 3, 4]
    assert "minutes of training" in figures.training_curves(
        {"mrboost": rows}, "validation", over="minutes"
    )


def test_the_path_of_a_run_leaves_room_for_its_lines() -> None:
    runs = {f"{'/somewhere' * 20}/seed{seed}": [_row(1)] * 3 for seed in (0, 1)}
    for svg in (
        figures.training_curves(runs, "validation"),
        figures.loss_curves(runs),
    ):  # matplotlib warns without room
        assert "<!-- …" in svg
        assert "/somewhere/seed1" in svg
        assert "/somewhere" * 5 not in svg
