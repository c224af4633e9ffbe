"""Models whose parts vote: the parts are found, and their mean has a gradient where the vote has
none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import mrboost
from mrboost.attacks import PGD, Transfer
from mrboost.attacks.adaptive import adaptive
from mrboost.attacks.surrogates import Twin, voters


class CrossMax(nn.Module):
    """Fort & Lakshminarayanan 2024: each member's largest logit is taken off, then the largest of
    each class, and the median of the members is the answer."""

    def __init__(self, *nets: nn.Module) -> None:
        super().__init__()
        self.nets = list(nets)  # where .modules() does not see them

    def forward(self, x: Tensor) -> Tensor:
        logits = torch.stack([net(x) for net in self.nets])
        logits = logits - logits.amax(dim=2, keepdim=True)
        logits = logits - logits.amax(dim=0, keepdim=True)
        return logits.median(dim=0).values


class Ballot(CrossMax):
    """A share of the members for each class."""

    def forward(self, x: Tensor) -> Tensor:
        votes = [net(x).argmax(dim=1) for net in self.nets]
        return torch.stack([nn.functional.one_hot(vote, 10) for vote in votes]).float().mean(0)


class Behind(nn.Module):
    """Each member sees the images otherwise, and something follows their vote."""

    def __init__(self, vote: CrossMax) -> None:
        super().__init__()
        self.vote, self.scale = vote, nn.Linear(10, 10)
        nn.init.eye_(self.scale.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(nn.functional.relu(self.vote(1 - (1 - x)), inplace=True))


@pytest.fixture(scope="module")
def nets(undefended, digits) -> list[nn.Module]:
    """Three ordinary networks."""
    found = [undefended]
    for seed in (1, 2):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            net = mrboost.models.build("cnn-digits", digits.shape, 10)
        optimizer = torch.optim.Adam(net.parameters(), 0.01)
        for _ in range(2):
            batches = zip(digits.train.images().split(64), digits.train.y.split(64), strict=True)
            for x, y in batches:
                optimizer.zero_grad()
                mrboost.losses.cross_entropy(net(x), y).backward()
                optimizer.step()
        found.append(net.eval())
    return found


@pytest.mark.parametrize("kind", [CrossMax, Ballot])
def test_a_vote_is_broken_by_transfer_from_the_mean_of_its_members(kind, nets, batch) -> None:
    """It seems robust to PGD, or has no gradient at all."""
    model, x, y = kind(*nets), batch[0][:32], batch[1][:32]
    attacks = adaptive(model, 0.1, x=x)
    twins = {label: attacks[label] for label in ("mean logits", "mean probabilities")}
    usual = {} if kind is Ballot else {"pgd": PGD(0.1, steps=100)}
    found = mrboost.evaluate(model, x, y, usual | twins, check=False)
    seems = found["clean" if kind is Ballot else "pgd"].accuracy
    assert seems > 0.9
    for label in twins:
        assert found[label].accuracy < seems - 0.15
    assert ("rays" in attacks) == (kind is Ballot), "without gradients, what needs none"
    assert ("autoattack" in attacks) == (kind is CrossMax)


@torch.no_grad()
def test_twins_are_the_means_of_what_the_members_answer(nets, batch) -> None:
    x = batch[0][:8]
    logits = torch.stack([net(x) for net in nets])
    inner = mrboost.Ensemble([mrboost.Ensemble(nets[:2]), nets[2]])
    for model in (
        CrossMax(*nets),
        Behind(CrossMax(*nets)),
        lambda z: CrossMax(*nets)(z) / 2,
        lambda z: nets[0](z).mul_(0.1) + nets[1](z) + nets[2](z),  # in place
        mrboost.Ensemble(nets, [0.5, 0.3, 0.2]),
        CrossMax(nn.Sequential(inner)),  # its one member is an ensemble
    ):
        parts = tuple(voters(model, x))
        mean = Twin(model, parts)(x)
        probabilities = Twin(model, parts, probabilities=True)(x).softmax(dim=1)
        wanted = logits
        if parts == (inner[0], nets[2]):
            wanted = torch.stack([logits[:2].mean(dim=0), logits[2]])
        assert len(parts) == len(wanted)
        assert mean == pytest.approx(wanted.mean(dim=0), abs=1e-4)
        assert probabilities == pytest.approx(wanted.softmax(dim=2).mean(dim=0), abs=1e-5)


@torch.no_grad()
def test_one_network_asked_several_times_votes_too(nets, batch) -> None:
    x = batch[0][:8]

    def flips(images: Tensor) -> Tensor:
        logits = torch.stack([nets[0](images), nets[0](images.flip(3)), nets[0](0.9 * images)])
        return logits.median(dim=0).values

    (part,) = voters(flips, x)
    assert part is nets[0]
    wanted = (nets[0](x) + nets[0](x.flip(3)) + nets[0](0.9 * x)) / 3
    assert Twin(flips, (part,))(x) == pytest.approx(wanted, abs=1e-4)


def test_what_follows_an_answer_is_no_vote(model, undefended, batch) -> None:
    """One network, whatever is around it, and layers that are as wide as its answer."""
    deep = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ReLU(), nn.Linear(10, 10))
    detached = CrossMax(undefended, undefended)
    for network in (
        model,
        undefended,
        nn.Sequential(undefended, nn.LogSoftmax(dim=1)),
        deep,
        lambda x: detached(x.detach()),
    ):
        assert voters(network, batch[0][:4]) == []
        assert not {"mean logits", "mean probabilities"} & set(adaptive(network, 0.1, x=batch[0]))


def test_an_ensemble_is_its_own_twin(nets, batch) -> None:
    """Of the two means only that of the probabilities is another model."""
    found = adaptive(mrboost.Ensemble(nets), 0.1, x=batch[0])
    assert [label for label in found if label.startswith("mean")] == ["mean probabilities"]
    unequal = adaptive(mrboost.Ensemble(nets, [0.8, 0.1, 0.1]), 0.1, x=batch[0])
    assert {"mean logits", "mean probabilities", "member 3"} <= set(unequal)
    assert isinstance(unequal["mean logits"], Transfer)
