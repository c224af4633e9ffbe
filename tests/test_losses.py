"""Losses against their definitions, literally transcribed, in float64."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mrboost.errors import InputError
from mrboost.losses import (
    Smoothed,
    boosted_cross_entropy,
    cross_entropy,
    dlr,
    kl_divergence,
    margin,
    margin_cross_entropy,
    margin_kl_divergence,
    probability,
)

SMOOTHED = [Smoothed(cross_entropy, 0.2), Smoothed(margin_cross_entropy, 0.3)]
SINGLE = [cross_entropy, margin_cross_entropy, margin, dlr, boosted_cross_entropy, *SMOOTHED]


def ce(g: list[float], y: int) -> float:
    return -g[y] + math.log(sum(math.exp(v) for v in g))


def mce(g: list[float], y: int, other: int) -> float:
    return ce(g, y) + ce([-v for v in g], other)


def mce_a(g: list[float], y: int) -> float:
    others = [j for j in range(len(g)) if j != y]
    return sum(mce(g, y, j) for j in others) / (len(g) - 1)


def best_other(g: list[float], y: int) -> float:
    return max(v for j, v in enumerate(g) if j != y)


def bce(g: list[float], y: int) -> float:
    rival = math.exp(best_other(g, y)) / sum(math.exp(v) for v in g)
    return ce(g, y) - math.log(1 - rival)


def dlr_literal(g: list[float], y: int) -> float:
    top = sorted(g, reverse=True)
    return (best_other(g, y) - g[y]) / (top[0] - top[2])


@pytest.fixture(params=[3, 5, 10])
def logits(request: pytest.FixtureRequest) -> Tensor:
    generator = torch.Generator().manual_seed(request.param)
    return 3 * torch.randn(7, request.param, generator=generator, dtype=torch.float64)


@pytest.fixture
def target(logits: Tensor) -> Tensor:
    return torch.arange(7) % logits.shape[1]


@pytest.mark.parametrize(
    ("loss", "definition"),
    [
        (cross_entropy, ce),
        (margin_cross_entropy, mce_a),
        (margin, lambda g, y: best_other(g, y) - g[y]),
        (dlr, dlr_literal),
        (boosted_cross_entropy, bce),
        (
            SMOOTHED[0],
            lambda g, y: 0.8 * ce(g, y) + sum(0.2 / len(g) * ce(g, j) for j in range(len(g))),
        ),
        (
            SMOOTHED[1],
            lambda g, y: 0.7 * mce_a(g, y) + sum(0.3 / len(g) * mce_a(g, j) for j in range(len(g))),
        ),
    ],
)
def test_equals_its_definition(loss, definition, logits: Tensor, target: Tensor) -> None:
    expected = torch.tensor(
        [definition(g, y) for g, y in zip(logits.tolist(), target.tolist(), strict=True)],
        dtype=torch.float64,
    )
    torch.testing.assert_close(loss(logits, target, reduction="none"), expected)
    torch.testing.assert_close(loss(logits, target), expected.mean())
    torch.testing.assert_close(loss(logits, target, reduction="sum"), expected.sum())


def test_pairwise_mce_equals_its_definition(logits: Tensor, target: Tensor) -> None:
    other = (target + 1 + torch.arange(7) % (logits.shape[1] - 1)) % logits.shape[1]
    assert (other != target).all()
    expected = [
        mce(g, y, o)
        for g, y, o in zip(logits.tolist(), target.tolist(), other.tolist(), strict=True)
    ]
    found = margin_cross_entropy(logits, target, other, reduction="none")
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_the_papers_listing_is_smaller_by_the_number_of_classes(
    logits: Tensor, target: Tensor
) -> None:
    classes = logits.shape[1]
    listing = (-F.log_softmax(-logits, dim=1) * (1 - F.one_hot(target, classes))).mean() / (
        classes - 1
    )
    ours = margin_cross_entropy(logits, target) - cross_entropy(logits, target)
    torch.testing.assert_close(ours, classes * listing)


def test_for_two_classes_mce_is_twice_ce() -> None:
    logits = 4 * torch.randn(50, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    target = torch.arange(50) % 2
    twice = 2 * cross_entropy(logits, target, reduction="none")
    torch.testing.assert_close(margin_cross_entropy(logits, target, reduction="none"), twice)
    torch.testing.assert_close(
        margin_cross_entropy(logits, target, 1 - target, reduction="none"), twice
    )


def test_kl_equals_its_definition(logits: Tensor) -> None:
    def definition(p_logits: Tensor, q_logits: Tensor) -> Tensor:
        p, q = p_logits.softmax(dim=1), q_logits.softmax(dim=1)
        return (p * (p / q).log()).sum(dim=1)

    other = logits.roll(1, dims=1)
    expected = definition(logits, other)
    torch.testing.assert_close(kl_divergence(logits, other, reduction="none"), expected)
    both = expected + definition(-logits, -other)
    torch.testing.assert_close(margin_kl_divergence(logits, other, reduction="none"), both)


def test_smoothing_the_cross_entropy_is_pytorchs(logits: Tensor, target: Tensor) -> None:
    expected = F.cross_entropy(logits, target, label_smoothing=0.2)
    torch.testing.assert_close(Smoothed(cross_entropy, 0.2)(logits, target), expected)
    torch.testing.assert_close(
        probability(logits, target), (-cross_entropy(logits, target, reduction="none")).exp()
    )
    with pytest.raises(InputError, match="between 0 and 1, got 1"):
        Smoothed(share=1.0)


@pytest.mark.parametrize("loss", [*SINGLE, kl_divergence, margin_kl_divergence])
def test_gradients(loss, logits: Tensor, target: Tensor) -> None:
    other = target if loss in SINGLE else logits.flip(1).requires_grad_(True)
    logits.requires_grad_(True)
    assert torch.autograd.gradcheck(lambda g, o: loss(g, o, reduction="none"), (logits, other))


def test_gradients_of_pairs(logits: Tensor, target: Tensor) -> None:
    other = (target + 1) % logits.shape[1]
    logits.requires_grad_(True)
    assert torch.autograd.gradcheck(lambda g: margin_cross_entropy(g, target, other), logits)


@pytest.mark.parametrize("loss", SINGLE)
def test_invariant_under_a_constant(loss, logits: Tensor, target: Tensor) -> None:
    torch.testing.assert_close(loss(logits + 17.0, target), loss(logits, target))


@pytest.mark.parametrize("loss", SINGLE)
def test_stable_at_huge_logits(loss) -> None:
    logits = torch.tensor(
        [[1e4, 0.0, -1e4, 3.0], [-1e4, 1e4, 1e4 - 1, 0.0], [1e4, 1e4 - 2, 1e4 - 3, -1e4]]
    )
    target = torch.tensor([0, 0, 1])
    values = logits.requires_grad_(True)
    found = loss(values, target, reduction="none")
    (gradient,) = torch.autograd.grad(found.sum(), values)
    assert gradient.isfinite().all()
    torch.testing.assert_close(
        found.double(), loss(logits.double(), target, reduction="none"), rtol=1e-6, atol=1e-3
    )


def test_mce_keeps_its_digits_when_the_true_logit_dwarfs_the_rest() -> None:
    """The false labels' terms are O(1) beside a true label's term of 1e6, which
    must not swallow them."""
    logits, target = torch.tensor([[1e6, 0.1, 0.2, 0.3]]), torch.tensor([0])
    false = (0.1, 0.2, 0.3)
    exact = sum(v + math.log(sum(math.exp(-w) for w in false)) for v in false) / 3
    assert margin_cross_entropy(logits, target).item() == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("loss", SINGLE)
def test_keeps_dtype(loss) -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        logits = torch.tensor([[1.0, 2.0, 0.0]], dtype=dtype)
        assert loss(logits, torch.tensor([1]), reduction="none").dtype == dtype


@pytest.mark.parametrize("loss", SINGLE)
def test_refuses_what_is_not_logits_and_labels(loss) -> None:
    logits, target = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"shape \(N, K\)"):
        loss(torch.zeros(2, 1), target)
    with pytest.raises(ValueError, match=r"shape \(2,\)"):
        loss(logits, target[:1])
    with pytest.raises(TypeError, match="int64"):
        loss(logits, target.float())
    with pytest.raises(ValueError, match="'median'"):
        loss(logits, target, reduction="median")
    for label, span in ((-1, r"-1\.\.0"), (3, r"0\.\.3"), (10**9, r"0\.\.1000000000")):
        with pytest.raises(ValueError, match=rf"labels must lie in 0\.\.2, got {span}"):
            loss(logits, torch.tensor([0, label]))
    with pytest.raises(TypeError, match=r"floating point, got torch\.int64"):
        loss(logits.long(), target)
    for odd in (None, [0, 0], target.to_sparse()):
        with pytest.raises(TypeError, match="dense tensors"):
            loss(logits, odd)


def test_dlr_needs_three_classes() -> None:
    with pytest.raises(ValueError, match="at least 3 classes"):
        dlr(torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64))


def weighted(
    g: list[list[float]], y: list[int], w: list[float], share: float = 0.0, ignored: int = -1
) -> tuple[list[float], float]:
    """MCE-A with class weights and smoothed labels, as ``F.cross_entropy`` defines them for CE: of
    each example, and the weights' sum."""
    classes = len(w)
    values, total = [], 0.0
    for row, label in zip(g, y, strict=True):
        if label == ignored:
            values.append(0.0)
            continue
        spread = sum(w[j] * mce_a(row, j) for j in range(classes)) / classes
        values.append((1 - share) * w[label] * mce_a(row, label) + share * spread)
        total += w[label]
    return values, total


@pytest.mark.parametrize(
    "options",
    [
        {"weight": True},
        {"label_smoothing": 0.2},
        {"weight": True, "label_smoothing": 0.2},
        {"ignore_index": 1},
        {"ignore_index": -100},
        {"weight": True, "label_smoothing": 1.0, "ignore_index": 1},
    ],
)
def test_mce_takes_what_cross_entropy_takes(options: dict, logits: Tensor, target: Tensor) -> None:
    classes = logits.shape[1]
    w = torch.arange(classes, dtype=torch.float64) + 0.5
    ignored = options.get("ignore_index", -1)
    target = torch.where(target == 1, ignored, target) if ignored < -1 else target
    of_class = w if "weight" in options else torch.ones_like(w)
    share = options.get("label_smoothing", 0.0)
    values, total = weighted(logits.tolist(), target.tolist(), of_class.tolist(), share, ignored)
    expected = torch.tensor(values, dtype=torch.float64)
    given = options | ({"weight": w} if "weight" in options else {})
    each = margin_cross_entropy(logits, target, reduction="none", **given)
    torch.testing.assert_close(each, expected)
    torch.testing.assert_close(
        margin_cross_entropy(logits, target, **given), expected.sum() / total
    )
    summed = margin_cross_entropy(logits, target, reduction="sum", **given)
    torch.testing.assert_close(summed, expected.sum())

    two, y = logits[:, :2], torch.where(target == ignored, ignored, target % 2)
    given |= {"weight": w[:2]} if "weight" in options else {}
    for reduction in ("none", "mean", "sum"):
        ours = margin_cross_entropy(two, y, reduction=reduction, **given)
        torch.testing.assert_close(ours, 2 * F.cross_entropy(two, y, reduction=reduction, **given))


def test_pairs_are_weighted_too_and_are_not_smoothed(logits: Tensor, target: Tensor) -> None:
    other = (target + 1) % logits.shape[1]
    w = torch.arange(logits.shape[1], dtype=torch.float64) + 0.5
    plain = margin_cross_entropy(logits, target, other, "none")
    found = margin_cross_entropy(logits, target, other, weight=w)
    torch.testing.assert_close(found, (w[target] * plain).sum() / w[target].sum())
    with pytest.raises(InputError, match=r"label_smoothing must be .* 0 with other=, got 0\.1"):
        margin_cross_entropy(logits, target, other, label_smoothing=0.1)
    with pytest.raises(InputError, match="a share of 0 to 1, got 2"):
        margin_cross_entropy(logits, target, label_smoothing=2)
    with pytest.raises(InputError, match=r"one number for each class, got shape \(2,\)"):
        margin_cross_entropy(logits, target, weight=w[:2])


def test_what_is_ignored_leaves_no_trace() -> None:
    logits, target = torch.tensor([[0.0, 1.0], [math.inf, -math.inf]]), torch.tensor([0, -100])
    with_it = margin_cross_entropy(logits, target, ignore_index=-100)
    assert with_it == margin_cross_entropy(logits[:1], target[:1])
