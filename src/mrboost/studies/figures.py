"""The two figures without trainings: the contours of MCE, and the theory on finite games."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_digits

from mrboost import game
from mrboost.evaluation.result import format_eps
from mrboost.losses import cross_entropy, margin_cross_entropy


@dataclass(frozen=True)
class Table:
    """Cells as text; ``title`` stands above."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Drawing:
    """What a page shows between its title and how it was made: tables, and plots
    as SVG text by name."""

    tables: tuple[Table, ...]
    plots: Mapping[str, str]


def contours(scale: str, *, progress: bool = False) -> Drawing:  # noqa: ARG001 — drawn at once at every scale
    """MCE(g, 0, 1) and 2 CE(g, 0) for K = 3 over the first two logits, the third being 0."""
    from mrboost.plots import figures as plots  # matplotlib takes a second

    axis = torch.linspace(-5, 5, 31 if scale == "smoke" else 81, dtype=torch.float64)
    mce, ce = _losses(*torch.meshgrid(axis, axis, indexing="xy"))
    levels = np.arange(0, 21, 1.0)
    pictures = {
        name: plots.contours(
            title, ("g(x)₀, the true label", "g(x)₁, the false label"), axis.numpy(), values, levels
        )
        for name, title, values in (
            ("mce", "MCE(g, y = 0, y' = 1)", mce),
            ("ce", "2 × CE(g, y = 0)", ce),
        )
    }
    points = [(5.0, 5.0), (5.0, 4.0), (5.0, 0.0), (2.0, 2.0), (0.0, 0.0), (-5.0, 5.0)]
    rows = []
    for g0, g1 in points:
        m, c = (
            value.item() for value in _losses(torch.tensor(g0).double(), torch.tensor(g1).double())
        )
        rows.append([f"({g0:g}, {g1:g}, 0)", f"{m:.3f}", f"{c:.3f}", f"{m - c:+.3f}"])
    head = ["logits", "MCE", "2 CE", "difference"]
    return Drawing(
        (Table("MCE punishes logits that are close where both are large", head, rows),), pictures
    )


def _losses(g0: torch.Tensor, g1: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits = torch.stack([g0, g1, torch.zeros_like(g0)], dim=-1).view(-1, 3)
    y = torch.zeros(len(logits), dtype=torch.long)
    mce = margin_cross_entropy(logits, y, torch.ones_like(y), reduction="none")
    return mce.view(g0.shape), 2 * cross_entropy(logits, y, reduction="none").view(g0.shape)


def stump_game(
    first: int = 3, second: int = 8, perturbations: int = 16, eps: float = 1 / 16
) -> game.Payoff:
    """Two digits: stumps at every second grey level of every pixel against each image and random
    corners of the ball."""
    x, digits = load_digits(return_X_y=True)
    chosen = np.isin(digits, (first, second))
    x, y = x[chosen] / 16, (digits[chosen] == first).astype(int)
    corners = np.random.default_rng(0).choice([-eps, eps], (perturbations - 1, 64))
    points = (x[:, None] + np.vstack([np.zeros(64), corners])).reshape(-1, 64)
    above = np.array(
        [points[:, pixel] > level / 16 + 1 / 32 for pixel in range(64) for level in range(1, 16, 2)]
    )
    labels = np.unique(np.vstack([above, ~above]), axis=0)
    return game.Payoff(game.SAug(y.repeat(perturbations), 2).labels(labels))


def theory(scale: str, *, progress: bool = False) -> Drawing:
    """Theorem 4's ξ(t) against the gap along a run of Algorithm 1 on stumps, and
    Proposition 3's example."""
    from mrboost.plots import figures as plots

    rounds, perturbations = {"full": (10_000, 16), "short": (2_000, 16), "smoke": (200, 2)}[scale]
    payoff = stump_game(perturbations=perturbations)
    value = game.solve(payoff).value
    run = game.mrboost(payoff, rounds, eta="anytime", progress=progress)
    gap = value - run.margin
    bound = np.array([game.theorem_bound(payoff.points, t) for t in range(1, rounds + 1)])
    rows = []
    for t in sorted({1, 10, 100, 1000, 10_000, rounds} & set(range(1, rounds + 1))):
        numbers = [run.margin[t - 1], gap[t - 1], bound[t - 1]]
        rows.append(
            [
                str(t),
                *(f"{number:.4f}" for number in numbers),
                "yes" if numbers[1] <= numbers[2] else "no",
            ]
        )
    within = (
        f"in all {rounds}"
        if bool((gap <= bound).all())
        else f"not in {int((gap > bound).sum())} of {rounds}"
    )
    theorem = Table(
        f"Theorem 4: {payoff.classifiers} stumps on the digits 3 and 8, eps = "
        f"{format_eps(1 / 16)}, |S_aug| = {payoff.points}, value {value:.4f}, η = 1/(2√t); the gap "
        f"is within the bound {within} rounds",
        ["t", "margin of Q(t)", "gap to the value", "ξ(t)", "gap ≤ ξ(t)"],
        rows,
    )
    picture = plots.lines(
        "Theorem 4: the gap to the best margin",
        ("round", "gap"),
        {"gap of Q(t)": gap, "ξ(t)": bound},
        logarithmic=True,
    )
    return Drawing((theorem, _proposition()), {"bound": picture})


def _proposition() -> Table:
    example = game.proposition_example()
    ours, theirs = (
        game.weak_learning(example.payoff),
        game.robboost_weak_learning(example.payoff, example.s_aug.pairs),
    )
    rows = [
        [
            "margin boosting",
            "holds" if ours.holds else "fails",
            f"{ours.tau:.4f}",
            "holds, τ = 0.2",
        ],
        ["RobBoost", "holds" if theirs.holds else "fails", f"{theirs.tau:.4f}", "fails"],
    ]
    head = ["weak-learning condition of", "ours", "largest τ", "paper"]
    return Table(
        "Proposition 3: one point, twenty classifiers each wrong on one interval of the ball",
        head,
        rows,
    )
