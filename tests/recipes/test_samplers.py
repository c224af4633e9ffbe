"""Samplers: who is attacked, with what, and that Exp draws from P_t."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from mrboost import models
from mrboost.attacks import PGD
from mrboost.errors import InputError
from mrboost.losses import cross_entropy, margin_cross_entropies, margin_cross_entropy
from mrboost.recipes import Exp
from mrboost.recipes.samplers import (
    All,
    Drawn,
    Learner,
    Max,
    Past,
    Rnd,
    Sampler,
    Turn,
    false_labels,
)

ATTACK = PGD(0.1, steps=10)
SAMPLERS: list[Sampler] = [
    Learner(),
    Past(),
    All(),
    All(aggressive=False),
    Drawn(),
    Rnd(),
    Max(),
    Exp(steps=4),
]


def draw(
    sampler: Sampler,
    learner: nn.Module,
    past: Sequence[nn.Module],
    x: Tensor,
    y: Tensor,
    seed: int = 0,
):
    return sampler(Turn(ATTACK, learner, past, x, y, torch.Generator().manual_seed(seed)))


@pytest.fixture(scope="module")
def networks() -> list[nn.Module]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return [models.build("cnn-digits", (1, 8, 8), 10).eval() for _ in range(3)]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("rounds", [0, 2])
def test_stays_in_the_ball_and_leaves_the_networks_alone(
    sampler, rounds: int, networks, batch
) -> None:
    x, y = batch
    learner, past = networks[0].train(), networks[1 : 1 + rounds]
    states = [{k: v.clone() for k, v in network.state_dict().items()} for network in networks]
    random_state = torch.get_rng_state()
    sample = draw(sampler, learner, past, x, y)
    assert learner.training
    assert not any(network.training for network in past)
    for network, state in zip(networks, states, strict=True):
        assert all(torch.equal(value, state[key]) for key, value in network.state_dict().items())
        assert all(p.requires_grad and p.grad is None for p in network.parameters())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert sample.x.shape == x.shape
    assert (sample.x >= 0).all()
    assert (sample.x <= 1).all()
    assert ((sample.x - x).abs() <= 0.1 + 1e-6).all()
    assert torch.equal(sample.clean, x)
    if sample.other is not None:
        assert (sample.other != y).all()
        assert ((sample.other >= 0) & (sample.other < 10)).all()
    assert torch.equal(draw(sampler, learner, past, x, y).x, sample.x)
    learner.eval()


def summed_mce(networks: Sequence[nn.Module], x: Tensor, y: Tensor) -> Tensor:
    logits = torch.stack([network(x) for network in networks]).mean(dim=0)
    return margin_cross_entropy(logits, y, reduction="none").mean()


def test_all_raises_the_ensembles_mce_more_than_other_moves(model, undefended, digits) -> None:
    x, y = digits.test.images()[:120], digits.test.y[:120]
    together = [model[0], undefended]
    noise = (x + ATTACK.threat.uniform(x, torch.Generator().manual_seed(0))).clamp(0, 1)
    with torch.no_grad():
        ours = summed_mce(together, draw(All(), undefended, [model[0]], x, y).x, y)
        assert ours > summed_mce(together, noise, y)
        assert ours > summed_mce(together, draw(Learner(), undefended, [model[0]], x, y).x, y)
        assert ours > summed_mce(
            together, draw(All(loss=cross_entropy), undefended, [model[0]], x, y).x, y
        )
        assert ours > summed_mce(together, draw(Past(), undefended, [model[0]], x, y).x, y)


def test_drawn_lets_each_image_meet_one_past_member_for_all(networks, batch) -> None:
    class Standing(nn.Module):
        """The learner, and one past member in the place of two."""

        def __init__(self, learner: nn.Module, member: nn.Module) -> None:
            super().__init__()
            self.learner, self.member = learner, member

        def forward(self, x: Tensor) -> Tensor:
            return (self.learner(x) + 2 * self.member(x)) / 3

    learner, *past = (deepcopy(network).double() for network in networks)
    x, y = batch[0].double()[:7], batch[1][:7]
    assert torch.equal(
        draw(Drawn(), learner, past[:1], x, y).x, draw(All(), learner, past[:1], x, y).x
    )
    assert torch.equal(draw(Drawn(), learner, [], x, y).x, draw(All(), learner, [], x, y).x)
    first, second = (
        draw(Learner(margin_cross_entropy), Standing(learner, one), [], x, y).x for one in past
    )
    wanted = torch.cat([first[:4], second[4:]])
    assert not torch.equal(wanted, first)
    assert draw(Drawn(), learner, past, x, y).x.numpy() == pytest.approx(wanted.numpy(), abs=1e-9)
    # Fewer images than members: the later ones are met by none.
    assert draw(Drawn(), learner, past * 3, x[:2], y[:2]).x.shape == x[:2].shape


def test_without_aggression_the_learner_does_not_matter(networks, batch) -> None:
    one, two = (
        draw(All(aggressive=False), learner, networks[2:], *batch).x for learner in networks[:2]
    )
    assert torch.equal(one, two)
    one, two = (draw(All(), learner, networks[2:], *batch).x for learner in networks[:2])
    assert not torch.equal(one, two)


def test_past_attacks_the_past_and_the_first_learner_itself(networks, batch) -> None:
    one, two = (draw(Past(), learner, networks[2:], *batch).x for learner in networks[:2])
    assert torch.equal(one, two)
    assert torch.equal(
        draw(Past(), networks[0], [], *batch).x, draw(Learner(), networks[0], [], *batch).x
    )


def test_false_labels_are_uniform_over_the_others() -> None:
    y = torch.full((30000,), 2)
    counts = false_labels(y, 4, torch.Generator().manual_seed(0)).bincount(minlength=4)
    assert counts[2] == 0
    assert ((counts[[0, 1, 3]] / 30000 - 1 / 3).abs() < 0.012).all()


def test_the_pair_of_max_is_the_worst_for_its_perturbation(networks, batch) -> None:
    sample = draw(Max(), networks[0], networks[1:], *batch)
    with torch.no_grad():
        logits = torch.stack([network(sample.x) for network in networks]).mean(dim=0)
    losses = margin_cross_entropies(logits, sample.y).scatter(1, sample.y[:, None], -torch.inf)
    assert torch.equal(losses.argmax(dim=1), sample.other)
    torch.testing.assert_close(
        margin_cross_entropy(logits, sample.y, sample.other, reduction="none"), losses.amax(dim=1)
    )


def test_rnd_and_max_raise_what_they_are_for(model, undefended, digits) -> None:
    """Rnd beats All on its own pair; Max beats the cross-entropy's attack on the worst pair."""
    x, y = digits.test.images()[:120], digits.test.y[:120]

    def pair(images: Tensor, other: Tensor | None) -> float:
        with torch.no_grad():
            logits = (model[0](images) + undefended(images)) / 2
            losses = margin_cross_entropies(logits, y).scatter(1, y[:, None], -torch.inf)
        return (
            (losses.amax(dim=1) if other is None else losses.gather(1, other[:, None]))
            .mean()
            .item()
        )

    rnd, every = (draw(sampler, undefended, [model[0]], x, y) for sampler in (Rnd(), All()))
    assert pair(rnd.x, rnd.other) > pair(every.x, rnd.other)
    worst, plain = (
        draw(sampler, undefended, [model[0]], x, y) for sampler in (Max(), All(loss=cross_entropy))
    )
    assert pair(worst.x, None) > pair(plain.x, None)


def test_exp_can_leave_the_examples_alike(networks, batch) -> None:
    assert draw(Exp(steps=2, reweight=False), networks[0], networks[1:], *batch).weight is None
    weight = draw(Exp(steps=2), networks[0], networks[1:], *batch).weight
    assert weight.mean().item() == pytest.approx(1, abs=1e-4)
    for wrong in ({"steps": 0}, {"eta": -1.0}, {"eta": float("nan")}, {"step_size": 3.0}):
        with pytest.raises(InputError, match="Exp needs"):
            Exp(**wrong)


class Waves(nn.Module):
    """Three wavy logits of a point in the unit interval or square."""

    def __init__(self, phase: float) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.tensor(phase))

    def forward(self, x: Tensor) -> Tensor:
        t = x.flatten(1).sum(dim=1)
        return torch.stack(
            [torch.sin(9 * t + self.phase), 1.5 * torch.cos(5 * t), t * self.phase], dim=1
        )


@pytest.mark.parametrize(("dimensions", "eta"), [(1, 0.0), (1, 0.5), (1, 2.0), (2, 1.0)])
@pytest.mark.parametrize("steps", [3, 12])
def test_exp_draws_from_p_t(dimensions: int, eta: float, steps: int) -> None:
    """Examples, false labels and perturbations on a grid: the weighted draws
    match the enumerated P_t."""
    points, labels, eps, bins = torch.tensor([0.15, 0.6, 0.9]), torch.tensor([0, 2, 1]), 0.3, 12
    past, learner = [Waves(0.3), Waves(1.2)], Waves(2.0)
    fine = 20 * bins
    exact = torch.zeros(3, 3, bins, dtype=torch.float64)  # example, y', first coordinate of δ
    for i, (point, label) in enumerate(zip(points, labels, strict=True)):
        low, high = max(point.item() - eps, 0.0), min(point.item() + eps, 1.0)
        axis = low + (high - low) * (torch.arange(fine) + 0.5) / fine
        grid = torch.cartesian_prod(axis, axis) if dimensions == 2 else axis[:, None]
        with torch.no_grad():
            logits = sum(network(grid) for network in (*past, learner))
        density = (
            eta * margin_cross_entropies(logits, label.expand(len(grid)))
        ).exp().double() / len(grid)
        density[:, label] = 0
        exact[i] = density.T.reshape(3, bins, -1).sum(dim=2)
    exact /= exact.sum()

    copies = 12000
    x = points.repeat_interleave(copies)[:, None].expand(-1, dimensions).contiguous()
    y = labels.repeat_interleave(copies)
    sampler = Exp(eta=eta, steps=steps)
    sample = sampler(Turn(PGD(eps), learner, past, x, y, torch.Generator().manual_seed(1)))
    low, high = (x[:, 0] - eps).clamp(min=0), (x[:, 0] + eps).clamp(max=1)
    cell = ((sample.x[:, 0] - low) / (high - low) * bins).long().clamp(0, bins - 1)
    index = (torch.arange(3).repeat_interleave(copies) * 3 + sample.other) * bins + cell
    found = torch.zeros(9 * bins, dtype=torch.float64).index_add_(
        0, index, sample.weight.double()
    ) / len(x)
    assert found.sum().item() == pytest.approx(1, abs=1e-4)
    assert 0.5 * (found.view(3, 3, bins) - exact).abs().sum().item() < 0.05
    assert 0 < sample.facts["acceptance"] <= 1
    assert 0 < sample.facts["effective_share"] <= 1 + 1e-5
    if eta == 0:
        assert sample.facts["effective_share"].item() == pytest.approx(1, abs=1e-4)


def test_exp_approaches_max_as_eta_grows() -> None:
    past, learner, eps = [Waves(0.3)], Waves(2.0), 0.3
    x, y = torch.full((4000, 1), 0.6), torch.full((4000,), 2)
    axis = torch.linspace(0.3, 0.9, 2001)[:, None]
    with torch.no_grad():
        losses = margin_cross_entropies(past[0](axis) + learner(axis), torch.full((2001,), 2))[
            :, :2
        ]
    best, other = losses.max().item(), losses.amax(dim=0).argmax().item()
    shares, gaps = [], []
    for eta in (0.5, 4.0, 32.0):
        sample = Exp(eta=eta, steps=60)(
            Turn(PGD(eps), learner, past, x, y, torch.Generator().manual_seed(0))
        )
        with torch.no_grad():
            logits = past[0](sample.x) + learner(sample.x)
        reached = margin_cross_entropy(logits, y, sample.other, reduction="none")
        shares.append(((sample.other == other) * sample.weight).mean().item())
        gaps.append(best - (reached * sample.weight).mean().item())
    assert shares == sorted(shares)
    assert gaps == sorted(gaps, reverse=True)
    assert shares[-1] > 0.99
    assert gaps[-1] < 0.1
