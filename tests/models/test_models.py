"""Architectures: the parameter counts that papers state, and the registry."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mrboost import models
from mrboost.errors import InputError


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "parameters", "blocks"),
    [
        ("resnet18", 55_869_810 // 5, 8),
        ("resnet152", 58_156_618, 50),
        ("wrn-34-10", 46_160_474, 15),
    ],
)
def test_parameters_and_blocks(name: str, parameters: int, blocks: int) -> None:
    """The paper counts five ResNet-18 together."""
    with torch.device("meta"):
        network = models.build(name)
    assert count(network) == parameters
    assert sum(hasattr(module, "shortcut") for module in network.modules()) == blocks


def test_the_nine_layer_cnn_has_six_convolutions_with_batchnorm() -> None:
    kinds = [type(module) for module in models.build("cnn9").modules()]
    assert kinds.count(nn.Conv2d) == kinds.count(nn.BatchNorm2d) == 6


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("cnn-digits", (1, 8, 8)),
        ("cnn-mnist", (1, 28, 28)),
        ("cnn9", (3, 32, 32)),
        ("resnet18", (3, 32, 32)),
    ],
)
def test_logits_and_gradients(name: str, shape: tuple[int, int, int]) -> None:
    x = torch.rand(2, *shape, requires_grad=True)
    logits = models.build(name, shape, 7).eval()(x)
    assert logits.shape == (2, 7)
    logits.sum().backward()
    assert (x.grad != 0).any()


@pytest.mark.parametrize("name", ["cnn-digits", "resnet18", "wrn-34-10"])
def test_silu_takes_the_place_of_every_relu(name: str) -> None:
    with torch.device("meta"):
        plain, smooth = models.build(name), models.build(f"{name}-silu")
    places = {place for place, module in plain.named_modules() if isinstance(module, nn.ReLU)}
    assert places == {
        place for place, module in smooth.named_modules() if isinstance(module, nn.SiLU)
    }
    assert len(places) == {"cnn-digits": 3, "resnet18": 17, "wrn-34-10": 31}[name]
    assert smooth.state_dict().keys() == plain.state_dict().keys()


def test_silu_computes_silu_in_every_copy() -> None:
    pair = models.build("2xcnn-digits-silu", (1, 8, 8), 3)
    assert sum(isinstance(module, nn.SiLU) for module in pair.modules()) == 6
    network, x = models.build("cnn-digits-silu", (1, 8, 8), 3).eval(), torch.rand(2, 1, 8, 8)
    features = network[1][1](network[1][0](network[0](x)))
    torch.testing.assert_close(network[1][2](features), features / (1 + (-features).exp()))


def test_normalisation_is_inside_and_saved_with_the_weights() -> None:
    mean, std = (0.2, 0.4, 0.6), (0.1, 0.2, 0.3)
    model = models.build("cnn9", mean=mean, std=std).eval()
    x = torch.rand(2, 3, 32, 32)
    expected = (x - torch.tensor(mean).view(1, 3, 1, 1)) / torch.tensor(std).view(1, 3, 1, 1)
    torch.testing.assert_close(model[0](x), expected)
    other = models.build("cnn9").eval()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), model(x))


def test_users_register_a_model(forgotten: None) -> None:
    @models.register("linear", normalize=False)
    def linear(shape: tuple[int, int, int], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))

    assert models.build("linear", (1, 8, 8), 3)(torch.rand(5, 1, 8, 8)).shape == (5, 3)
    assert "linear" in models.names()
    with pytest.raises(InputError, match=r"'linear-silu' cannot be built: it has no nn\.ReLU"):
        models.build("linear-silu", (1, 8, 8), 3)
    with pytest.raises(InputError, match="registered already"):
        models.register("linear")(linear)


def test_unknown_and_too_small() -> None:
    with pytest.raises(InputError, match="unknown model 'resnet-18': did you mean resnet18"):
        models.build("resnet-18")
    with pytest.raises(InputError, match="4x4 are too small"):
        models.build("cnn9", (3, 4, 4))
