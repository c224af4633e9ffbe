"""Models that only answer, by arrays, sessions or labels, and models that draw random numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import mrboost
from commands import checks
from mrboost.attacks import APGD, PGD, RayS, Square
from mrboost.attacks.adaptive import adaptive
from mrboost.errors import InputError
from mrboost.models import BlackBox

QUICK = {"square": Square(0.2, steps=200), "rays": RayS(0.2, steps=200)}


class Session:
    """As an InferenceSession of ONNX Runtime: labels and scores, in batches of four."""

    def __init__(
        self, network: nn.Module, size: int | str = 4, kind: str = "tensor(float)"
    ) -> None:
        self.network, self.size, self.kind = network, size, kind

    def get_inputs(self) -> list[Any]:
        return [SimpleNamespace(name="images", shape=[self.size, 1, 8, 8], type=self.kind)]

    def run(self, outputs: None, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        images = feed["images"]
        assert len(images) == self.size or self.size == "batch"
        assert str(images.dtype) == {"tensor(double)": "float64"}.get(self.kind, "float32")
        scores = self.network(torch.from_numpy(images).float()).detach().numpy()
        return [scores.argmax(axis=1), scores]


def kinds(network: nn.Module) -> dict[str, Any]:
    """The same model in the forms that people have it in."""

    def arrays(images: np.ndarray) -> np.ndarray:
        assert isinstance(images, np.ndarray)
        return network(torch.from_numpy(images.astype("float32"))).detach().numpy()

    return {
        "arrays": arrays,
        "session": Session(network),
        "any size": Session(network, "batch", "tensor(double)"),
        "lists": lambda images: arrays(images).tolist(),
        "arrays of tensors": lambda images: network(images).numpy(),
        "labels": lambda images: arrays(images).argmax(axis=1),
        "one-hot": lambda images: np.eye(10, dtype=int)[arrays(images).argmax(axis=1)],
        "labels of tensors": lambda images: network(images).argmax(dim=1),
    }


@pytest.mark.parametrize("kind", kinds(nn.Identity()))
def test_models_that_only_answer(kind: str, undefended, batch) -> None:
    """They are broken as the network inside them is, and the result says what that proves."""
    x, y = batch[0][:24], batch[1][:24]
    wanted = mrboost.evaluate(undefended, x, y, QUICK, check=False)
    found = mrboost.evaluate(kinds(undefended)[kind], x, y, QUICK)
    assert found["clean"].correct == wanted["clean"].correct
    assert found["rays"].correct == wanted["rays"].correct, "labels are enough for it"
    assert found["rays"].accuracy < found["clean"].accuracy - 0.3
    labels = kind in ("labels", "one-hot", "labels of tensors")
    if not labels:
        assert found["square"].correct == wanted["square"].correct
    (doubt,) = [one for one in found.doubts if one.check != "black-box"]
    assert doubt.check == "no-gradient"
    assert "withstands an attacker who asks it so many times and knows no more" in doubt.message
    assert ("labels alone, of which square makes little" in doubt.message) is labels


def test_what_needs_gradients_is_refused_before_it_begins(undefended, batch) -> None:
    asked = []

    def arrays(images: np.ndarray) -> np.ndarray:
        asked.append(len(images))
        return undefended(torch.from_numpy(images)).detach().numpy()

    for attack, name in (
        ("apgd-ce", "apgd-ce"),
        ("autoattack", "autoattack"),
        (PGD(0.1), "pgd-20"),
    ):
        with pytest.raises(InputError) as error:
            mrboost.evaluate(arrays, *batch, attack, eps=0.1)
        expected = (
            f"{name} needs gradients, and the model only answers: use square or rays, or name"
        )
        assert str(error.value).startswith(expected)
    with pytest.raises(InputError, match="fgsm needs gradients"):
        mrboost.evaluate(arrays, *batch, eps=0.1)
    assert sum(asked) < 20
    with pytest.raises(InputError, match=r"gave ndarray: give mrboost.models.BlackBox\(model, "):
        QUICK["rays"](lambda x: undefended(x).numpy(), *batch)
    with pytest.raises(InputError, match=r"labels: give mrboost.models.BlackBox\(model, classes"):
        QUICK["rays"](lambda x: undefended(x).argmax(dim=1), *batch)
    adv = QUICK["rays"](BlackBox(arrays), *batch)
    assert (undefended(adv).argmax(dim=1) != batch[1]).float().mean() > 0.3


def test_labels_beyond_those_of_the_images_are_a_class_of_their_own() -> None:
    labels = np.array([0, 2, 7, -1])
    found = BlackBox(lambda x: labels, classes=3)(torch.zeros(4, 1))
    assert found.argmax(dim=1).tolist() == [0, 2, 3, 3]
    with pytest.raises(InputError, match="classes=10"):
        BlackBox(lambda x: labels)(torch.zeros(4, 1))
    x, y = torch.rand(4, 1, 2, 2), torch.tensor([0, 1, 1, 0])
    assert mrboost.evaluate(lambda x: labels[: len(x)], x[:1], y[:1], [], check=False).worst[0] == 1
    far = mrboost.evaluate(lambda x: np.full(len(x), 7), x, y, [], check=False)
    assert far["clean"].accuracy == 0


def test_adaptive_attacks_on_models_that_only_answer(undefended, batch) -> None:
    for model in kinds(undefended).values():
        assert list(adaptive(model, 0.1, x=batch[0])) == ["square", "rays"]
    assert list(adaptive(lambda x: undefended(x.detach()), 0.1, x=batch[0])) == ["square", "rays"]
    assert list(adaptive(BlackBox(lambda x: x), 0.5, "L2", torch.rand(4, 3))) == ["square"]
    zero = adaptive(lambda x: undefended(x.round()), 0.1, x=batch[0])
    assert list(zero) == ["autoattack", "apgd-mce", "square", "rays"]


def noisy(network: nn.Module) -> Any:
    """A defence that draws random numbers, so that each gradient is mostly noise."""

    def model(x: Tensor) -> Tensor:
        noise = (x - x.detach()).flatten(1) @ (6 * torch.randn(64, 10))
        return network(x + 0.05 * torch.randn_like(x)) + noise

    return model


def test_a_random_model_gets_averaged_gradients(undefended, batch) -> None:
    model, (x, y) = noisy(undefended), (batch[0][:32], batch[1][:32])
    attacks = adaptive(model, 0.15, x=x)
    assert list(attacks) == ["autoattack-rand", "apgd-mce"]
    assert attacks["apgd-mce"].eot == 20
    assert all(search.eot == 20 for search in attacks["autoattack-rand"].searches)
    (doubt,) = mrboost.evaluate(model, x, y, "fgsm", eps=0.15).doubts
    assert doubt.check == "random"
    assert "Use autoattack-rand, which averages, or --adaptive" in doubt.message
    of_one, of_many = APGD(0.15, steps=20), APGD(0.15, steps=20, eot=20)
    found = mrboost.evaluate(model, x, y, {"of one": of_one, "of many": of_many})
    assert found["of many"].accuracy < found["of one"].accuracy - 0.2
    assert "random" not in checks(found.doubts)
    assert list(adaptive(undefended, 0.1, x=x)) == ["autoattack", "apgd-mce"]
