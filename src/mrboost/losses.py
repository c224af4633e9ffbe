r"""Losses as pure functions of logits, per example until the last line.

Every loss of one batch of logits is called as ``loss(logits, target, reduction=…)`` and grows as
the classifier does worse, so that training minimises it and an attack maximises it. With ``g`` the
logits of one example, ``y`` its label and ``K`` the number of classes:

=====================  ============================================================================
cross_entropy          CE(g, y) = log Σ_j exp g_j − g_y
margin_cross_entropy   MCE(g, y, y') = CE(g, y) + CE(−g, y'); MCE-A(g, y) = Σ_{y'≠y}
                       MCE(g, y, y') / (K − 1)
margin                 max_{j≠y} g_j − g_y
dlr                    (max_{j≠y} g_j − g_y) / (g_(1) − g_(3)),  g_(i) the i-th largest logit
targeted_dlr           (g_y' − g_y) / (g_(1) − (g_(3) + g_(4)) / 2),  y' the label aimed at
boosted_cross_entropy  CE(g, y) − log(1 − max_{j≠y} softmax(g)_j)
kl_divergence          KL(softmax p ‖ softmax q), of two batches of logits
margin_kl_divergence   KL(softmax p ‖ softmax q) + KL(softmax −p ‖ softmax −q)
=====================  ============================================================================

``Smoothed(loss, share)`` is the loss of smoothed labels, for any loss of this table.

References: Zhang et al., "Building Robust Ensembles via Margin Boosting", ICML 2022 (MCE; the
definition is the one of its appendix, which averages over the K − 1 false labels; its listing
divides by K once more); Carlini & Wagner 2017 (margin); Croce & Hein 2020 (DLR, targeted DLR); Wang
et al. 2020 (boosted CE); Szegedy et al. 2016 (smoothing).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from .errors import InputError, check_new_name

Reduction = Literal["mean", "sum", "none"]


class Loss(Protocol):
    """A loss of logits and labels; ``reduction="none"`` gives one value per example."""

    def __call__(
        self, logits: Tensor, target: Tensor, *, reduction: Reduction = "mean"
    ) -> Tensor: ...


class Divergence(Protocol):
    """How far the second batch of logits is from the first."""

    def __call__(
        self, p_logits: Tensor, q_logits: Tensor, *, reduction: Reduction = "mean"
    ) -> Tensor: ...


L = TypeVar("L", bound=Loss)


def cross_entropy(logits: Tensor, target: Tensor, reduction: Reduction = "mean") -> Tensor:
    """Cross-entropy ``CE(g, y) = log Σ_j exp g_j − g_y``.

    Args:
        logits: ``(N, K)``.
        target: labels y, ``(N,)``.
        reduction: "mean", "sum", or "none" for one value per example.

    Returns:
        A number, or values ``(N,)``.
    """
    _check(logits, target)
    return _reduce(_pick(-F.log_softmax(logits, dim=1), target), reduction)


def margin_cross_entropy(
    logits: Tensor,
    target: Tensor,
    other: Tensor | None = None,
    reduction: Reduction = "mean",
    *,
    weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
) -> Tensor:
    """Margin cross-entropy: raise the true label's logit and lower a false label's.

    ``MCE(g, y, y') = CE(g, y) + CE(−g, y')``; for two classes it is twice the cross-entropy.

    Args:
        logits: ``(N, K)``.
        target: labels y, ``(N,)``.
        other: false labels y', ``(N,)``; without them the average over all K − 1 is taken.
        reduction: "mean", "sum", or "none" for one value per example.
        weight: of each class, ``(K,)``, as in ``F.cross_entropy``: an example counts w_y, and the
            mean is over the sum of these.
        label_smoothing: the share ε of ``(1 − ε) w_y MCE-A(g, y) + ε Σ_j w_j MCE-A(g, j) / K``.
        ignore_index: a label whose examples count nothing; -100 is what ``F.cross_entropy`` has
            unless told otherwise.

    Returns:
        A number, or values ``(N,)``.

    Reference:
        Zhang et al., "Building Robust Ensembles via Margin Boosting", ICML 2022.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0, -1.0]])
        >>> margin_cross_entropy(logits, torch.tensor([0]))
        tensor(1.0189)
    """
    if weight is None and not label_smoothing and ignore_index is None:
        return _reduce(_margin_cross_entropy(logits, target, other), reduction)
    if not 0 <= label_smoothing <= 1 or (label_smoothing and other is not None):
        remedy = "a share of 0 to 1" + (", and 0 with other=" if other is not None else "")
        raise InputError(f"label_smoothing must be {remedy}, got {label_smoothing}")
    of_class = logits.new_ones(logits.shape[1]) if weight is None else weight
    if of_class.shape != logits.shape[1:]:
        shapes = f"{tuple(of_class.shape)} for {logits.shape[1]} classes"
        raise InputError(f"weight must have one number for each class, got shape {shapes}")
    counts = torch.ones_like(target, dtype=torch.bool)
    if ignore_index is not None:
        counts = target != ignore_index
        target = target.masked_fill(~counts, 0)
    of_example = of_class[target] * counts
    values = of_example * _margin_cross_entropy(logits, target, other)
    if label_smoothing:
        spread = _over_labels(logits, of_class) / logits.shape[1]
        values = (1 - label_smoothing) * values + label_smoothing * spread * counts
    # Not 0 times a loss that may be infinite
    values = values.masked_fill(~counts, 0.0)
    if reduction == "mean":
        return values.sum() / of_example.sum()
    return _reduce(values, reduction)


def _margin_cross_entropy(logits: Tensor, target: Tensor, other: Tensor | None) -> Tensor:
    """That of each example."""
    raise_true = cross_entropy(logits, target, "none")
    lower = -F.log_softmax(-logits, dim=1)
    if other is not None:
        _check(logits, other)
        return raise_true + _pick(lower, other)
    # Masked rather than "the sum minus the true label's term": that term is huge exactly when the
    # example is classified well, and subtracting it would cancel the digits of the rest.
    lower_false = lower.masked_fill(is_label(logits, target), 0.0).sum(dim=1)
    return raise_true + lower_false / (logits.shape[1] - 1)


def _over_labels(logits: Tensor, weight: Tensor) -> Tensor:
    """``Σ_j w_j MCE-A(g, j)`` of each example: label i is lowered by all j but itself."""
    classes = len(weight)
    itself = torch.eye(classes, dtype=torch.bool, device=weight.device)
    others = weight.expand(classes, classes).masked_fill(itself, 0.0).sum(dim=1)
    raised = -F.log_softmax(logits, dim=1) @ weight
    return raised - F.log_softmax(-logits, dim=1) @ others / (classes - 1)


def margin_cross_entropies(logits: Tensor, target: Tensor) -> Tensor:
    """``MCE(g, y, j)`` for every label j at once.

    Returns:
        ``(N, K)``; the column of the true label has no meaning.
    """
    return cross_entropy(logits, target, "none")[:, None] - F.log_softmax(-logits, dim=1)


def most_likely_other(logits: Tensor, target: Tensor) -> Tensor:
    """The false label with the largest logit, ``(N,)``: the one for which MCE and the margin are
    largest."""
    return logits.masked_fill(is_label(logits, target), -torch.inf).argmax(dim=1)


def margin(logits: Tensor, target: Tensor, reduction: Reduction = "mean") -> Tensor:
    """Margin ``max_{j≠y} g_j − g_y``: negative while the example is classified correctly.

    Args and returns are those of ``cross_entropy``.

    Reference:
        Carlini & Wagner, "Towards evaluating the robustness of neural networks", 2017.

    Example:
        >>> margin(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0]))
        tensor(-2.)
    """
    _check(logits, target)
    others = logits.masked_fill(is_label(logits, target), -torch.inf).amax(dim=1)
    return _reduce(others - _pick(logits, target), reduction)


def dlr(logits: Tensor, target: Tensor, reduction: Reduction = "mean") -> Tensor:
    """Difference of logits ratio ``(max_{j≠y} g_j − g_y) / (g_(1) − g_(3))``: the margin, made
    invariant to shifting and scaling the logits. It needs K >= 3.

    Args and returns are those of ``cross_entropy``.

    Reference:
        Croce & Hein, "Reliable evaluation of adversarial robustness with an ensemble of diverse
        parameter-free attacks", 2020.
    """
    gap = margin(logits, target, "none")
    if logits.shape[1] < 3:
        raise ValueError(f"dlr needs at least 3 classes, got {logits.shape[1]}: use margin")
    top = logits.topk(3, dim=1).values
    return _reduce(gap / (top[:, 0] - top[:, 2] + 1e-12), reduction)


def targeted_dlr(
    logits: Tensor, target: Tensor, other: Tensor, reduction: Reduction = "mean"
) -> Tensor:
    """Difference of logits ratio towards another label,
    ``(g_y' − g_y) / (g_(1) − (g_(3) + g_(4)) / 2)``.

    With three classes the denominator is ``g_(1) − g_(3)``, and with two there is none.

    Args:
        logits: ``(N, K)``.
        target: labels y, ``(N,)``.
        other: the labels y' aimed at, ``(N,)``.
        reduction: "mean", "sum", or "none" for one value per example.

    Returns:
        A number, or values ``(N,)``.

    Reference:
        Croce & Hein 2020, as for ``dlr``.
    """
    _check(logits, target)
    _check(logits, other)
    gap = _pick(logits, other) - _pick(logits, target)
    if logits.shape[1] == 2:
        return _reduce(gap, reduction)
    top = logits.topk(min(4, logits.shape[1]), dim=1).values
    return _reduce(gap / (top[:, 0] - top[:, 2:].mean(dim=1) + 1e-12), reduction)


def boosted_cross_entropy(logits: Tensor, target: Tensor, reduction: Reduction = "mean") -> Tensor:
    """MART's boosted cross-entropy ``CE(g, y) − log(1 − p_k)``, with p the probabilities and k the
    most likely false label.

    Args and returns are those of ``cross_entropy``.

    Reference:
        Wang et al., "Improving adversarial robustness requires revisiting misclassified examples",
        2020.
    """
    raise_true = cross_entropy(logits, target, "none")
    rival = is_label(logits, most_likely_other(logits.detach(), target))
    # log(1 − p_k) as the log of the others' probabilities: exact where p_k is almost one.
    others = F.log_softmax(logits, dim=1).masked_fill(rival, -torch.inf).logsumexp(dim=1)
    return _reduce(raise_true - others, reduction)


LOSSES: dict[str, Loss] = {
    "ce": cross_entropy,
    "mce": margin_cross_entropy,
    "margin": margin,
    "dlr": dlr,
    "boosted-ce": boosted_cross_entropy,
}
"""Losses by the names that ``--loss`` and attacks (``pgd-mce-20``, ``apgd-dlr``) use."""


def register(name: str) -> Callable[[L], L]:
    """Make a loss of your own available under ``name``: to ``train --loss``, and in the names of
    attacks.

    It is called as ``loss(logits, target, reduction="none")`` and gives one number for each image.

    Example:
        >>> @register("squared-margin")
        ... def squared_margin(logits, target, reduction="mean"):
        ...     return (1 + margin(logits, target, "none")).clamp(min=0).square()
    """

    def decorate(loss: L) -> L:
        check_new_name("loss", name, LOSSES)
        _check_own(name, loss)
        LOSSES[name] = loss
        return loss

    return decorate


def _check_own(name: str, loss: Loss) -> None:
    """Refuse what does not give one finite number for each of three images."""
    logits, target = torch.eye(3).requires_grad_(True), torch.tensor([0, 1, 0])
    try:
        found: object = loss(logits, target, reduction="none")
    except TypeError as error:
        remedy = 'make it loss(logits, target, reduction="mean")'
        raise InputError(f"loss {name!r} cannot be called ({error}): {remedy}") from error
    shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if shape != (3,):
        remedy = 'with reduction="none" return one number for each, of shape (N,)'
        raise InputError(f"loss {name!r} gave {shape} for 3 images: {remedy}")


@dataclass(frozen=True)
class Smoothed:
    """A loss of smoothed labels, ``(1 − share) loss(g, y) + share · mean_j loss(g, j)`` with j over
    all labels.

    Args:
        loss: of logits and labels.
        share: of the weight that goes to all labels alike, between 0 and 1.

    Reference:
        Szegedy et al., "Rethinking the Inception architecture for computer vision", 2016.
    """

    loss: Loss = cross_entropy
    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise InputError(f"smoothing must be between 0 and 1, got {self.share}: 0.1 is usual")

    def __call__(self, logits: Tensor, target: Tensor, *, reduction: Reduction = "mean") -> Tensor:
        count, classes = logits.shape
        labels = torch.arange(classes, device=logits.device).repeat(count)
        repeated = logits.repeat_interleave(classes, dim=0)
        spread = self.loss(repeated, labels, reduction="none").view(count, classes)
        hard = self.loss(logits, target, reduction="none")
        return _reduce((1 - self.share) * hard + self.share * spread.mean(dim=1), reduction)


def kl_divergence(p_logits: Tensor, q_logits: Tensor, reduction: Reduction = "mean") -> Tensor:
    """Kullback–Leibler divergence ``KL(softmax p ‖ softmax q)``.

    Args:
        p_logits, q_logits: two batches of logits, ``(N, K)`` each.
        reduction: "mean", "sum", or "none" for one value per example.

    Returns:
        A number, or values ``(N,)``.
    """
    if p_logits.shape != q_logits.shape:
        shapes = f"{tuple(p_logits.shape)} and {tuple(q_logits.shape)}"
        raise ValueError(f"kl_divergence needs equal shapes, got {shapes}")
    p, q = F.log_softmax(p_logits, dim=1), F.log_softmax(q_logits, dim=1)
    return _reduce((p.exp() * (p - q)).sum(dim=1), reduction)


def margin_kl_divergence(
    p_logits: Tensor, q_logits: Tensor, reduction: Reduction = "mean"
) -> Tensor:
    """``KL(softmax p ‖ softmax q) + KL(softmax −p ‖ softmax −q)``: to the KL divergence what MCE is
    to the cross-entropy. Args and returns are those of ``kl_divergence``."""
    lowered = kl_divergence(-p_logits, -q_logits, reduction)
    return kl_divergence(p_logits, q_logits, reduction) + lowered


def probability(logits: Tensor, label: Tensor) -> Tensor:
    """``softmax(g)_y`` of each example, ``(N,)``."""
    _check(logits, label)
    return _pick(logits.softmax(dim=1), label)


def _pick(values: Tensor, label: Tensor) -> Tensor:
    return values.gather(1, label[:, None]).squeeze(1)


def is_label(logits: Tensor, label: Tensor) -> Tensor:
    """Whether a column is the example's label, ``(N, K)``."""
    return torch.arange(logits.shape[1], device=logits.device) == label[:, None]


def _reduce(values: Tensor, reduction: Reduction) -> Tensor:
    if reduction == "none":
        return values
    if reduction == "mean":
        return values.mean()
    if reduction == "sum":
        return values.sum()
    raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")


def _check(logits: Tensor, label: Tensor) -> None:
    for tensor in (logits, label):
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            raise TypeError(f"logits and labels must be dense tensors, got {type(tensor).__name__}")
    if not logits.is_floating_point():
        raise TypeError(f"logits must be floating point, got {logits.dtype}")
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise ValueError(f"logits must have shape (N, K) with K >= 2, got {tuple(logits.shape)}")
    if label.shape != logits.shape[:1]:
        raise ValueError(f"labels must have shape ({logits.shape[0]},), got {tuple(label.shape)}")
    if label.dtype != torch.int64:
        raise TypeError(f"labels must be int64, got {label.dtype}: convert with .long()")
    if logits.device != label.device:
        raise ValueError(f"logits are on {logits.device} and labels on {label.device}: move one")
    if label.device.type == "cpu" and len(label) and not torch.compiler.is_compiling():
        with suppress(RuntimeError):  # a tensor without values
            _check_range(label, logits.shape[1])


def _check_range(label: Tensor, classes: int) -> None:
    """On the CPU alone: other devices would wait for the answer, and say something themselves."""
    low, high = (bound.item() for bound in label.detach().aminmax())
    if low < 0 or high >= classes:
        raise ValueError(f"labels must lie in 0..{classes - 1}, got {low}..{high}")
