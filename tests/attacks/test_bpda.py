"""BPDA: the answers of one model with the gradients of another, against what rounds its images."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

import mrboost
from commands import checks, quantised
from mrboost.attacks import BPDA, PGD, AutoAttack, Transfer
from mrboost.attacks.adaptive import adaptive


def test_values_are_the_models_and_gradients_the_surrogates() -> None:
    model, x = BPDA(lambda x: x.round() * 3, lambda x: x.square()), torch.rand(4, 5)
    logits = model(x.requires_grad_(True))
    assert torch.equal(logits, x.round() * 3)
    (gradient,) = torch.autograd.grad(logits.sum(), x)
    assert torch.equal(gradient, 2 * x)
    with torch.no_grad():
        assert torch.equal(BPDA(torch.round, lambda x: 1 / 0)(x), x.round()), "not asked for"


class Rounding(nn.Module):
    """Rounds images to five levels, a defence that masks its gradients."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network((4 * x).round() / 4)


def test_a_rounding_model_falls_with_a_surrogate(undefended, batch) -> None:
    """Without one no gradient attack moves a point, and the figure is doubted; with the network
    behind the rounding attacks find their way, and the doubt is gone."""
    model = Rounding(undefended)
    masked = mrboost.evaluate(model, *batch, "pgd-20", eps=0.15)
    assert masked["pgd-20"].accuracy > masked["clean"].accuracy - 0.1
    (doubt,) = [one for one in masked.doubts if one.check == "zero-gradient"]
    assert "stand-in for the model as surrogate" in doubt.message
    found = mrboost.evaluate(model, *batch, "pgd-20", eps=0.15, surrogate=undefended)
    assert found["clean"].correct == masked["clean"].correct
    assert found["pgd-20"].accuracy < masked["pgd-20"].accuracy - 0.3
    assert found["surrogate"].accuracy < masked["pgd-20"].accuracy - 0.3
    assert "zero-gradient" not in checks(found.doubts)
    # A function for a function: the rounding passes its gradient on
    through = mrboost.evaluate(
        quantised(undefended),
        *batch,
        "pgd-20",
        eps=0.15,
        surrogate=lambda x: undefended(x + ((4 * x).round() / 4 - x).detach()),
        check=False,
    )
    assert through["pgd-20"].accuracy < masked["pgd-20"].accuracy - 0.3


def test_what_counts_is_the_model_whatever_the_surrogate_says(undefended, batch) -> None:
    """A surrogate that errs everywhere breaks nothing."""
    bad = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    x, y = batch[0][:16], batch[1][:16]
    found = mrboost.evaluate(undefended, x, y, "apgd-ce", eps=0.01, surrogate=bad, check=False)
    assert found["clean"].accuracy == 1
    assert found["surrogate"].accuracy > 0.8
    adv = AutoAttack(0.15, stages=1)(BPDA(undefended, bad), x, y)
    found = mrboost.evaluate(BPDA(undefended, bad), x, y, AutoAttack(0.15, stages=1), check=False)
    wrong = undefended(adv).argmax(dim=1) != y
    assert found.outcomes[1].correct == tuple((~wrong).tolist())


def test_gradients_for_a_function_of_arrays(undefended, batch) -> None:
    def predict(images: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return undefended(torch.from_numpy(np.round(images, 1))).numpy()

    x, y = batch[0][:24], batch[1][:24]
    found = mrboost.evaluate(predict, x, y, ["apgd-ce"], eps=0.15, surrogate=undefended)
    assert found["apgd-ce"].accuracy < found["clean"].accuracy - 0.3
    assert "no-gradient" not in checks(found.doubts)


def test_a_transfer_keeps_to_the_ball_of_the_attacks(undefended, batch) -> None:
    x, y = batch[0][:4], batch[1][:4]
    how = {"surrogate": undefended, "check": False}
    found = mrboost.evaluate(undefended, x, y, PGD(0.5, "L2", steps=2), **how)
    assert (found["surrogate"].eps, found["surrogate"].norm) == (0.5, "L2")
    assert [
        o.attack for o in mrboost.evaluate(undefended, x, y, "fgsm", eps=0, **how).outcomes
    ] == ["clean", "fgsm"]
    attacks = adaptive(BPDA(Rounding(undefended), undefended), 0.1, x=x)
    assert isinstance(attacks["surrogate"], Transfer)
    assert attacks["surrogate"].source is undefended
    assert "rays" not in attacks, "there are gradients"


def test_networks_behind_functions_are_in_eval_mode(batch) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10)).train()
    state = {name: value.clone() for name, value in network.state_dict().items()}
    model = BPDA(lambda x: network(x.round()), lambda x: network(x))
    y = network.eval()(batch[0].round()).argmax(dim=1)
    network.train()
    PGD(0.1, steps=2)(model, batch[0], y)
    assert network.training
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())
