"""Recipes, losses, samplers and attacks of one's own, by name, through the commands."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from torch import Tensor

import mrboost
from commands import done, error_of, json_of
from mrboost import attacks, losses, recipes, samplers
from mrboost.attacks import PGD
from mrboost.data import Dataset
from mrboost.errors import InputError
from mrboost.losses import cross_entropy
from mrboost.recipes import OnPairs, OnPerturbed

DESIGN = (Path(__file__).parents[2] / "docs" / "design.md").read_text("utf-8")
ONCE = ["--epochs", "1", "--device", "cpu", "--quiet"]


@pytest.fixture
def forget(
    forgotten: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], object]:
    """The blocks of docs/design.md as ``mine.py`` in the current folder; called, it makes this
    process as a new one that has not imported it."""
    blocks = re.findall(r"^```python\n(.*?)^```", DESIGN, re.DOTALL | re.MULTILINE)
    blocks[-1] = blocks[-1].partition("model = ")[0]
    (tmp_path / "mine.py").write_text("\n".join(blocks))
    monkeypatch.chdir(tmp_path)
    known = [recipes.methods._BY_NAME, losses.LOSSES, samplers.SAMPLERS, attacks.registry._NAMES]
    before = [dict(registry) for registry in known]

    def forget() -> None:
        sys.modules.pop("mine", None)
        for registry, content in zip(known, before, strict=True):
            registry.clear()
            registry.update(content)

    forget()
    return forget


def test_every_command_knows_them_with_import(
    forget: Callable[[], object], pictures: list[str], capsys
) -> None:
    train = ["train", "half-clean", *pictures, *ONCE, "--loss", "focal", "--out", "own"]
    message = error_of(capsys, *train)
    assert "unknown recipe 'half-clean'" in message
    assert "--import its module" in message
    done(*train, "--import", "mine")
    config = mrboost.runs.Run.open("own").config
    assert config["recipe"]["sampler"] == {"part": "HalfClean", "joint": False, "loss": "focal"}
    assert config["recipe"]["objective"]["loss"] == "focal"
    shown = json_of(capsys, "recipes", "--show", "half-clean", "--import", "mine")
    assert shown["sampler"]["part"] == "HalfClean"

    attacked = ["--attack", "noise,pgd-focal-3,apgd-focal", "--n", "6", "--no-check"]
    found = json_of(capsys, "evaluate", "own", "--import", "mine", "--quiet", *attacked)
    measured = [outcome["attack"] for outcome in found["evaluations"][0]["outcomes"]]
    assert measured == ["clean", "noise", "pgd-focal-3", "apgd-focal"]
    done("report", "own", "--import", "mine", "--attack", "noise", "--n", "6", "--quiet")
    plan = ["study", "samplers", "--scale", "smoke", "--plan", "--also", "noise"]
    done(*plan, "--import", "mine")

    forget()
    resume = ["train", "--resume", "--out", "own", "--quiet", "--device", "cpu"]
    message = error_of(capsys, *resume)
    assert "recipe 'half-clean', which is not registered here: add --import MODULE" in message
    for command in (["evaluate", "own", *attacked], ["report", "own", "--attack", "noise"], plan):
        assert "attacks.register, and --import its module" in error_of(capsys, *command)
    done(*resume, "--rounds", "2", "--import", "mine")
    assert len(mrboost.load("own")) == 2


@pytest.mark.parametrize(
    ("option", "name", "said"),
    [("--loss", "focal", "loss 'focal'"), ("--sampler", "half-clean", "sampler 'HalfClean'")],
)
def test_a_part_of_ones_own_in_a_recipe_of_the_librarys(
    option: str, name: str, said: str, forget: Callable[[], object], pictures: list[str], capsys
) -> None:
    train = ["train", "at-mce", *pictures, *ONCE, option, name, "--smoothing", "0.1"]
    assert "register it, and --import its module" in error_of(capsys, *train)
    done(*train, "--out", "own", "--import", "mine")
    forget()
    resume = ["train", "--resume", "--out", "own", "--quiet", "--device", "cpu", "--rounds", "2"]
    assert f"{said}, which is not registered here" in error_of(capsys, *resume)
    done(*resume, "--import", "mine")
    kept = mrboost.runs.Run.open("own").config["recipe"]
    expected = {"loss": "margin_cross_entropy", "part": "HalfClean"}
    if option == "--loss":
        expected = {"loss": "focal", "part": "Learner"}
    assert expected.items() <= kept["sampler"].items()
    assert kept["objective"]["loss"]["share"] == 0.1


@dataclass(frozen=True)
class Bare:
    loss: losses.Loss = cross_entropy

    def __call__(self, turn):
        return turn.x


@dataclass(frozen=True)
class Images(Bare):
    joint: bool = False


@dataclass(frozen=True)
class Halved(Images):
    def __call__(self, turn):
        return replace(turn.sample(turn.x), x=turn.x[:1])


@dataclass
class Changing:
    joint: bool = False

    def __call__(self, turn):
        return turn.x


def mean_loss(logits: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    return cross_entropy(logits, target)


@pytest.mark.parametrize(
    ("register", "message"),
    [
        (lambda: samplers.register("own")(Bare), "sampler 'own' has no attribute 'joint'"),
        (lambda: samplers.register("own")(Changing), r"no frozen dataclass.*@dataclass\(frozen"),
        (lambda: samplers.register("all")(Images), "a sampler called 'all' is registered already"),
        (lambda: losses.register("own")(mean_loss), r"gave \(\) for 3 images: .*one number for ea"),
        (lambda: losses.register("own")(lambda g, y: g), r"make it loss\(logits, target, reduct"),
        (lambda: losses.register("mce")(cross_entropy), "a loss called 'mce' is registered alread"),
        (lambda: attacks.register("cw")(PGD), "an? attack called 'cw' is registered already"),
        (lambda: attacks.register("pgd-30")(PGD), "the name of an attack with a loss"),
        (lambda: attacks.register("a,b")(PGD), "cannot be called 'a,b': take letters"),
        (lambda: attacks.register("own")(lambda: PGD()), r"made as factory\(eps, norm\)"),
        (lambda: recipes.register("at"), "a recipe is a mrboost.Recipe, got 'at'"),
        (lambda: recipes.register(recipes.AT), "a recipe called 'at' is registered already"),
        (lambda: replace(recipes.AT, sampler=Images), r"is a class: give .*Images\(\)"),
        (lambda: replace(recipes.AT, objective=mean_loss), "objective of recipe 'at' is no frozen"),
    ],
)
def test_what_cannot_be_registered_is_refused_in_one_line(
    register: Callable[[], object], message: str, forgotten: None
) -> None:
    with pytest.raises(InputError, match=message) as refused:
        register()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"sampler": Images()}, "sampler Images of recipe 'at' gave Tensor and no Sample"),
        ({"sampler": Halved()}, r"gave \(1, 1, 8, 8\) for \(2, 1, 8, 8\): keep the shape"),
        ({"objective": OnPerturbed(mean_loss)}, r"losses of shape \(\) for 2 images: .*\"none\""),
        ({"objective": OnPairs()}, "needs a sampler that chooses a false label: take rnd"),
    ],
)
def test_parts_that_do_not_fit_are_refused_before_training(
    parts: dict, message: str, tiny: Dataset, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        mrboost.boost(replace(recipes.AT, **parts), tiny, out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_names_of_losses_in_attacks_read_back() -> None:
    for name in ("pgd-20", "pgd-mce-20", "pgd-margin-3", "pgd-boosted-ce-2", "apgd-margin"):
        assert attacks.named(name).name == name
    assert attacks.named("pgd-ce-20") == attacks.named("pgd-20")
