"""Models that are out of the ordinary, scripted, compiled, of low precision or working in
place: right figures."""

from __future__ import annotations

import os
from shutil import which

import pytest
import torch
from torch import Tensor, nn

import mrboost
from mrboost import InputError, Mixture
from mrboost.attacks import APGD, FAB, PGD, Attack, Square
from mrboost.attacks.arc import ARC
from mrboost.attacks.survivors import run


@pytest.mark.parametrize("wrap", [lambda net: net, nn.Sequential, lambda net: lambda x: net(x)])
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_frozen_scripts_are_attacked(wrap, undefended, batch) -> None:
    """They have no mode to be in."""
    frozen = torch.jit.freeze(torch.jit.trace(undefended.eval(), batch[0]))
    attacks = [PGD(0.1, steps=3), APGD(0.1, steps=10)]
    found = mrboost.evaluate(wrap(frozen), *batch, attacks)
    expected = mrboost.evaluate(undefended, *batch, attacks, check=False)
    assert [outcome.correct for outcome in found.outcomes] == [
        outcome.correct for outcome in expected.outcomes
    ]


@pytest.mark.skipif(which(os.environ.get("CXX", "g++")) is None, reason="needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")  # torch warns itself while it compiles
def test_compiled_models_are_attacked_like_others(batch) -> None:
    """Their passes can be gone back through only once."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    x, y = batch[0][:12], network(batch[0][:12]).argmax(dim=1)
    compiled = torch.compile(network, dynamic=True)
    attacks = {
        "pgd": PGD(0.1, steps=3),
        "fab": FAB(0.1, steps=3),
        "apgd-t": APGD(0.1, steps=3, targets=2),
    }
    found, wanted = (mrboost.evaluate(one, x, y, attacks) for one in (compiled, network))
    assert [o.correct for o in found.outcomes] == [o.correct for o in wanted.outcomes]
    assert found["fab"].accuracy < 1
    arc = ARC(0.1, steps=2)
    assert arc(Mixture([compiled, network]), x, y) == pytest.approx(
        arc(Mixture([network, network]), x, y), abs=1e-5
    )


class InPlace(nn.Module):
    """Normalises its input where it lies."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        x.sub_(0.5)
        return self.net(x + 0.5)


def test_a_model_that_works_in_place_is_attacked_like_another(model, batch, search) -> None:
    """Neither the searches' images nor those of the caller are the model's to change."""
    x, y = batch[0][:12].clone(), batch[1][:12]
    attacks = {"search": search, "pgd": PGD(search.eps, search.norm, steps=2, restarts=2)}
    wanted = mrboost.evaluate(model, x, y, attacks, check=False)
    found = mrboost.evaluate(InPlace(model), x, y, attacks)
    assert [o.correct for o in found.outcomes] == [o.correct for o in wanted.outcomes]
    assert not found.doubts
    assert search.threat.distance(search(InPlace(model), x, y), x).max() <= search.eps * (1 + 1e-5)
    assert torch.equal(x, batch[0][:12])


@pytest.mark.parametrize("together", [mrboost.Ensemble, mrboost.Mixture])
def test_members_that_work_in_place_do_not_spoil_each_others_images(together, model, batch) -> None:
    x, y = batch[0][:12].clone(), batch[1][:12]
    mixed = together is mrboost.Mixture
    attacks: list[str | Attack] = ["pgd-2", ARC(0.1, steps=2) if mixed else Square(0.1, steps=100)]
    plain, in_place = (together([one, one]) for one in (model, InPlace(model)))
    wanted, found = (
        mrboost.evaluate(net, x, y, attacks, eps=0.1, check=False) for net in (plain, in_place)
    )
    assert [o.correct for o in found.outcomes] == [o.correct for o in wanted.outcomes]
    assert torch.equal(x, batch[0][:12])


def test_a_model_that_works_in_place_is_not_trained(digits, forgotten: None) -> None:
    """The batches are those of the attack and of other members too."""

    @mrboost.models.register("in-place", normalize=False)
    def net(shape: tuple[int, int, int], classes: int) -> nn.Module:
        return InPlace(nn.Sequential(nn.Flatten(), nn.Linear(64, classes)))

    before = digits.train.images().clone()
    with pytest.raises(InputError, match="model 'in-place' changes its images"):
        mrboost.boost("at", digits, model="in-place", epochs=1, device="cpu")
    assert torch.equal(digits.train.images(), before)


@pytest.fixture
def double_by_default():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double_by_default")
def test_double_precision_around_a_model_does_not_stop_a_search(model, batch, search) -> None:
    """As torch's default type, and as that of the logits."""
    x, y = batch[0][:12], batch[1][:12]
    wanted = model(search(model, x, y)).argmax(dim=1) == y
    wide = model(search(lambda images: model(images).double(), x, y)).argmax(dim=1) == y
    assert (wanted != wide).sum() <= 1


def test_logits_of_low_precision_are_judged(model, batch) -> None:
    """Autocast leaves such logits."""

    def mixed(images: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(images)

    attack = FAB(0.2, steps=20, targets=3)
    found = [
        mrboost.evaluate(net, *batch, attack, check=False)["fab-t"].accuracy
        for net in (model, mixed)
    ]
    assert found[1] == pytest.approx(found[0], abs=0.1)


def test_a_model_that_detaches_is_named_for_it(batch) -> None:
    """Its logits have a gradient all the same: in the weights of a network
    that the function hides."""
    hidden = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    x, y = batch[0], hidden(batch[0]).argmax(dim=1)
    for attack in (PGD(0.1, steps=2), APGD(0.1, steps=2), FAB(0.1, steps=2)):
        with pytest.raises(
            InputError, match=r"no gradient in its input: it detaches or rounds .* Use square"
        ):
            attack(lambda images: hidden(images.detach()), x, y)


@pytest.mark.parametrize(
    "search", [APGD(0.15, steps=20, targets=2), APGD(0.8, "L2", steps=20, targets=2)]
)
def test_a_lead_that_is_small_beside_the_logits_is_one_all_the_same(search, model, batch) -> None:
    """Logits that share a large number are rounded, by 0.008 here; the mistakes count that
    an image alone makes."""
    x, y = batch

    def shifted(images: Tensor) -> Tensor:
        return model(images) + 1e5

    plain, moved = (run(net, x, y, [search], seed=0) for net in (model, shifted))
    assert (moved.alive != plain.alive).sum() <= 2
    assert all(
        shifted(moved.adv[i : i + 1]).argmax() != y[i] for i in (~moved.alive).nonzero().flatten()
    )
