"""The rounds: initialisation, frozen members, scopes, growing a run, mixtures."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

import mrboost
from commands import ONE_OF_EACH, same
from mrboost import Ensemble, Mixture, models, recipes
from mrboost.attacks import PGD
from mrboost.attacks.adaptive import attacks_on
from mrboost.data import Dataset, validation_split
from mrboost.devices import make_fabric
from mrboost.errors import InputError
from mrboost.losses import margin_cross_entropy
from mrboost.recipes import Ind, OnPairs, PerInit, RndInit, Whole
from mrboost.recipes.config import resolve
from mrboost.recipes.samplers import Learner, Sample
from mrboost.seeds import derive, global_stream
from mrboost.training.boost import boost
from mrboost.training.fit import fit


def test_one_round_is_plain_training_bit_for_bit(tiny: Dataset) -> None:
    boosted = boost("at", tiny, rounds=1, device="cpu")
    config = resolve(recipes.AT, tiny)
    train, held_out = validation_split(tiny.train, config.validation)
    with global_stream(derive(0, "initialise", 1), torch.device("cpu")):
        mean, std = tiny.channel_stats()
        learner = models.build(config.model, tiny.shape, 3, mean=mean, std=std)
    fitted = fit(learner, [], train, held_out, config, fabric=make_fabric("cpu"))
    assert all(
        torch.equal(fitted.best[key], value) for key, value in boosted[0].state_dict().items()
    )


@pytest.mark.parametrize("name", ONE_OF_EACH.values())
def test_every_kind_of_recipe_trains(name: str, tiny: Dataset, tmp_path) -> None:
    rounds = min(2, recipes.get(name).rounds)
    trained = boost(name, tiny, rounds=rounds, epochs=1, out=tmp_path / "run", device="cpu")
    assert len(trained) == rounds
    assert same(mrboost.load(tmp_path / "run"), trained)
    assert type(mrboost.load(tmp_path / "run")) is (Mixture if name == "pinot" else Ensemble)
    rows = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [(row["round"], row["epoch"]) for row in rows] == [(r, 1) for r in range(1, rounds + 1)]
    assert ("acceptance" in rows[0]) == (name == "mrboost-exp")


def test_the_papers_combinations_are_there() -> None:
    table = {
        (r.sampler.loss.__name__, type(r.scope).__name__, type(r.init).__name__)
        for r in recipes.RECIPES.values()
        if type(r.sampler).__name__ == "All"
    }
    expected = {
        (loss, scope, init)
        for loss in ("margin_cross_entropy", "cross_entropy")
        for scope in ("Ind", "Whole")
        for init in ("PerInit", "RndInit")
    }
    assert table == expected
    default = recipes.get("mrboost")
    assert (type(default.scope).__name__, type(default.init).__name__) == ("Ind", "PerInit")


def test_past_members_never_change(tiny: Dataset, tmp_path) -> None:
    one = boost("mrboost", tiny, rounds=1, out=tmp_path / "run", device="cpu")
    three = boost("mrboost", tiny, rounds=3, out=tmp_path / "run", resume=True, device="cpu")
    assert len(three) == 3
    assert same(one[0], three[0]), "weights and BatchNorm statistics of the first member"
    assert same(boost("mrboost", tiny, rounds=3, device="cpu"), three), (
        "growing a run equals running it at once"
    )


def parameters_agree(one: nn.Module, two: nn.Module) -> bool:
    return all(
        torch.allclose(a, b, atol=1e-6)
        for a, b in zip(one.parameters(), two.parameters(), strict=True)
    )


@pytest.mark.parametrize("past", ["last", "best"])
def test_later_rounds_start_from_the_last_weights_of_the_one_before(
    past, tiny: Dataset, tmp_path, monkeypatch
) -> None:
    """At a rate of nearly zero, round 2 ends where it began: at the last weights of round 1,
    or at its best ones."""
    scores = iter([0.0, 0.0, 1.0, 0.0] * 2)  # the third of four epochs is the best one
    monkeypatch.setattr(mrboost.training.fit, "_validate", lambda *_: (1.0, next(scores)))
    options = {"rounds": 2, "epochs": 4, "later_lr": 1e-12, "past": past, "device": "cpu"}
    trained = boost("mrboost", tiny, out=tmp_path / "run", **options)
    first, last = (mrboost.load(tmp_path / "run", which, rounds=1)[0] for which in ("best", "last"))
    assert not parameters_agree(first, last)
    kept, other = (last, first) if past == "last" else (first, last)
    assert parameters_agree(trained[1], kept)
    assert not parameters_agree(trained[1], other)
    assert same(trained[0], kept), "so are the past members of the ensemble"
    for which in ("best", "last"):
        assert same(mrboost.load(tmp_path / "run", which)[0], kept)
    assert same(mrboost.load(tmp_path / "run"), trained)
    run = mrboost.runs.Run.open(tmp_path / "run")
    assert run.epochs(1) == {"best": 3, "last": 4}
    scored = mrboost.evaluate(mrboost.load(tmp_path / "run"), *held_out(tiny), "pgd-20", eps=0.05)[
        "pgd-20"
    ]
    row = run.results["rounds"][1]["pgd-20"]
    assert row["accuracy"] == scored.accuracy
    assert row["margin"] == pytest.approx(scored.margin, abs=1e-6)
    assert row["min_margin"] == pytest.approx(scored.min_margin, abs=1e-6)


def held_out(dataset: Dataset) -> tuple[Tensor, Tensor]:
    split = validation_split(dataset.train, 3)[1]
    return split.images(), split.y


def test_pasts_of_independent_rounds_are_their_own_best(
    tiny: Dataset, tmp_path, monkeypatch
) -> None:
    scores = iter([0.0, 0.0, 1.0, 0.0] * 2)
    monkeypatch.setattr(mrboost.training.fit, "_validate", lambda *_: (1.0, next(scores)))
    trained = boost("at", tiny, rounds=2, epochs=4, out=tmp_path / "run", device="cpu")
    best, last = (mrboost.load(tmp_path / "run", which) for which in ("best", "last"))
    assert same(best, trained)
    assert not parameters_agree(best[0], last[0])
    with pytest.raises(
        InputError, match="rounds of 'at' are independent of each other: leave past out"
    ):
        boost("at", tiny, rounds=2, past="best", device="cpu")


def test_growing_is_the_only_change_that_resume_takes(tiny: Dataset, tmp_path) -> None:
    boost("mrboost", tiny, rounds=2, out=tmp_path / "run", device="cpu")
    with pytest.raises(InputError, match="rounds: 2 -> 1"):
        boost("mrboost", tiny, rounds=1, out=tmp_path / "run", resume=True, device="cpu")
    with pytest.raises(InputError, match="seed: 0 -> 1"):
        boost("mrboost", tiny, rounds=3, seed=1, out=tmp_path / "run", resume=True, device="cpu")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["rounds"] == 2
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert [row["round"] for row in results["rounds"]] == [1, 2]


def test_later_rounds_may_be_shorter_and_slower(tiny: Dataset, tmp_path) -> None:
    said = {
        "rounds": 3,
        "epochs": 4,
        "later_epochs": 2,
        "lr": 0.1,
        "later_lr": 0.01,
        "schedule": "one-cycle",
    }
    boost("mrboost", tiny, out=tmp_path, device="cpu", **said)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(row["round"], row["epoch"]) for row in rows] == [(1, e) for e in (1, 2, 3, 4)] + [
        (r, e) for r in (2, 3) for e in (1, 2)
    ]
    fastest = [max(row["lr"] for row in rows if row["round"] == r) for r in (1, 2, 3)]
    assert fastest[0] > 0.01 >= fastest[1] == fastest[2]
    # Another later round
    boost("mrboost", tiny, out=tmp_path, device="cpu", resume=True, **{**said, "rounds": 4})
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 10
    with pytest.raises(InputError, match="later_epochs: 2 -> 1"):
        boost(
            "mrboost",
            tiny,
            out=tmp_path,
            device="cpu",
            resume=True,
            **{**said, "rounds": 4, "later_epochs": 1},
        )
    for wrong in ({"later_epochs": 0}, {"later_lr": -1.0}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))} must be"):
            boost("mrboost", tiny, device="cpu", **wrong)


def test_a_trained_network_is_boosted(tiny: Dataset, tmp_path) -> None:
    """Boosting on top of at-mce is what boosting does that trains its first round itself: that
    is the same training."""
    boost("at-mce", tiny, epochs=3, out=tmp_path / "single", device="cpu")
    said = {"rounds": 3, "epochs": 3, "device": "cpu"}
    whole = boost("mrboost", tiny, out=tmp_path / "whole", **said)
    boosted = boost("mrboost", tiny, first=tmp_path / "single", out=tmp_path / "boosted", **said)
    assert same(boosted, whole)
    rows, usual = (
        [
            (r["round"], r["epoch"], r["loss"])
            for r in mrboost.runs.Run.open(tmp_path / name).metrics()
        ]
        for name in ("boosted", "whole")
    )
    assert rows == usual
    short = boost(
        "mrboost", tiny, first=tmp_path / "single", out=tmp_path / "short", **{**said, "epochs": 1}
    )
    assert same(short[0], whole[0])
    assert len((tmp_path / "short" / "metrics.jsonl").read_text().splitlines()) == 3 + 1 + 1
    boost(
        "mrboost", tiny, out=tmp_path / "short", resume=True, **{**said, "rounds": 4, "epochs": 1}
    )


def test_a_first_round_that_is_interrupted_is_copied_again(
    tiny: Dataset, tmp_path, monkeypatch
) -> None:
    boost("at-mce", tiny, epochs=2, out=tmp_path / "single", device="cpu")
    said = {"rounds": 2, "epochs": 1, "device": "cpu", "out": tmp_path / "boosted"}
    with monkeypatch.context() as patch:
        patch.setattr(
            mrboost.runs.Run, "save_member", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            boost("mrboost", tiny, first=tmp_path / "single", **said)
    boost("mrboost", tiny, resume=True, **said)
    assert same(mrboost.load(tmp_path / "boosted")[0], mrboost.load(tmp_path / "single")[0])
    assert len((tmp_path / "boosted" / "metrics.jsonl").read_text().splitlines()) == 2 + 1


def test_a_first_round_must_fit(tiny: Dataset, tmp_path) -> None:
    boost("at", tiny, epochs=1, out=tmp_path / "single", device="cpu")
    for wrong, message in (
        ({"validation": 5}, r"cannot be first \(validation: 3 -> 5\)"),
        ({"model": "cnn-digits-silu"}, "model: 'cnn-digits' -> 'cnn-digits-silu'"),
        ({"first": tmp_path / "none"}, "there is no run folder"),
        ({"out": None}, "give out as well"),
    ):
        said = {
            "first": tmp_path / "single",
            "out": tmp_path / "boosted",
            "rounds": 2,
            "epochs": 1,
            **wrong,
        }
        with pytest.raises(InputError, match=message):
            boost("mrboost", tiny, device="cpu", **said)
        assert not (tmp_path / "boosted").exists()


def test_where_a_learner_starts() -> None:
    one, two, fresh = (models.build("cnn-digits", (1, 8, 8), 3) for _ in range(3))
    two[1][1].running_mean.fill_(0.7)
    before = deepcopy(fresh)
    RndInit()(fresh, [one, two])
    PerInit()(fresh, [])
    assert same(fresh, before)
    PerInit()(fresh, [one, two])
    assert same(fresh, two)


def test_rounds_are_scored_whenever_they_were_finished(tiny: Dataset, tmp_path) -> None:
    def scored() -> list[int]:
        return [
            row["round"]
            for row in json.loads((tmp_path / "run" / "results.json").read_text())["rounds"]
        ]

    boost("mrboost", tiny, rounds=1, out=tmp_path / "run", device="cpu")
    assert scored() == [1]
    boost("mrboost", tiny, rounds=3, out=tmp_path / "run", resume=True, device="cpu")
    assert scored() == [1, 2, 3]
    (tmp_path / "run" / "results.json").unlink()
    boost("mrboost", tiny, rounds=3, out=tmp_path / "run", resume=True, device="cpu")
    assert scored() == [1, 2, 3]


@pytest.mark.parametrize(("name", "members"), [("mrboost", [1, 2]), ("at", [1, 1])])
def test_who_is_judged(
    name: str, members: list[int], tiny: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best epoch is the ensemble's for boosting, the learner's own for independent training."""
    judged = []

    def spy(model: nn.Module, *rest: object) -> tuple[float, float]:
        judged.append(len(model) if isinstance(model, Ensemble) else 1)
        return 0.5, 0.5

    monkeypatch.setattr(mrboost.training.fit, "accuracies", spy)
    boost(name, tiny, rounds=2, epochs=1, device="cpu")
    assert judged == members


@pytest.mark.parametrize("name", ["mrboost", "robboost"])
def test_members_are_frozen(name: str, tiny: Dataset) -> None:
    for member in boost(name, tiny, rounds=2, epochs=1, device="cpu"):
        assert not any(module.training for module in member.modules())
        assert not any(p.requires_grad for p in member.parameters())


def test_pairs_and_weights_reach_the_gradient(batch) -> None:
    """One example with weight 3 and one with 1: the gradient is that of the
    weighted pairwise MCE."""
    network = models.build("cnn-digits", (1, 8, 8), 10).eval()
    x, y, other = batch[0][:2], batch[1][:2], (batch[1][:2] + 4) % 10
    sample = Sample(clean=x, x=x, y=y, other=other, weight=torch.tensor([1.5, 0.5]))
    losses, _ = OnPairs()(network, sample)
    torch.testing.assert_close(losses, margin_cross_entropy(network(x), y, other, reduction="none"))

    @dataclass(frozen=True)
    class Fixed(Learner):
        def __call__(self, turn):
            weight = torch.where(turn.y == 0, 3.0, 0.0)
            return Sample(clean=turn.x, x=turn.x, y=turn.y, other=(turn.y + 1) % 3, weight=weight)

    def shift(tiny: Dataset, weighted: bool) -> Tensor:
        sampler = Fixed() if weighted else Learner()
        recipe = replace(recipes.AT, sampler=sampler, momentum=0.0, weight_decay=0.0)
        config = resolve(
            recipe, tiny, epochs=1, batch_size=36, validation=3, lr=1.0, padding=0, flip=False
        )
        with torch.random.fork_rng():
            torch.manual_seed(0)
            learner = models.build("cnn-digits", tiny.shape, 3)
        before = list(learner.parameters())[-1].detach().clone()
        fit(learner, [], tiny.train, tiny.test, config, fabric=make_fabric("cpu"))
        return list(learner.parameters())[-1].detach() - before

    y = torch.arange(48) % 3
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(48, 1, 8, 8, generator=generator)
    dataset = mrboost.data.from_tensors(
        images[:36], y[:36], images[36:], y[36:], model="cnn-digits", padding=0
    )
    # Only class 0 counts, so the bias of class 0 rises and the others fall; unweighted,
    # nearly nothing happens.
    moved, still = shift(dataset, True), shift(dataset, False)
    assert moved[0] > 0.3 > 0 > moved[1:].max()
    assert still.abs().max() < 0.2


def test_whole_sees_the_mean_and_moves_the_learner_alone(batch) -> None:
    networks = [models.build("cnn-digits", (1, 8, 8), 10).eval() for _ in range(3)]
    x = batch[0][:8]
    logits = Whole()(networks[2], networks[:2])(x)
    torch.testing.assert_close(
        logits, torch.stack([network(x) for network in networks]).mean(dim=0)
    )
    logits.sum().backward()
    assert all(p.grad is None for network in networks[:2] for p in network.parameters())
    assert any((p.grad != 0).any() for p in networks[2].parameters())
    assert Ind()(networks[2], networks[:2]) is networks[2]
    assert Whole()(networks[2], []) is networks[2]


def test_mixture_is_an_expectation(batch) -> None:
    x, y = batch
    networks = [models.build("cnn-digits", (1, 8, 8), 10).eval() for _ in range(2)]
    mixture = Mixture(networks, [0.3, 0.7]).eval()
    probabilities = 0.3 * networks[0](x).softmax(1) + 0.7 * networks[1](x).softmax(1)
    torch.testing.assert_close(mixture(x).exp(), probabilities)
    right = [(network(x).argmax(1) == y).double() for network in networks]
    torch.testing.assert_close(
        mixture.expected_correct(x, y).double(), 0.3 * right[0] + 0.7 * right[1]
    )
    accuracy = mrboost.evaluate(mixture, x, y, [], check=False)["clean"].accuracy
    low, high = sorted(r.mean().item() for r in right)
    assert low - 1e-6 <= accuracy <= high + 1e-6
    assert accuracy == pytest.approx(
        0.3 * right[0].mean().item() + 0.7 * right[1].mean().item(), abs=1e-6
    )


def test_the_probability_attack_raises_the_mixtures_expected_loss_most(
    model, undefended, digits
) -> None:
    """Against a robust and an undefended member, attacking probabilities beats attacking logits
    or the first member."""
    x, y = digits.test.images()[:120], digits.test.y[:120]
    mixture = Mixture([model, undefended], [0.5, 0.5]).eval()
    loss = {
        name: torch.nn.functional.nll_loss(mixture(attack(mixture, x, y)), y).item()
        for name, attack in attacks_on(mixture, PGD(0.1)).items()
    }
    assert loss["mean probabilities"] > max(loss["first member"], loss["mean logits"])
    result = mrboost.evaluate(mixture, x, y, attacks_on(mixture, PGD(0.1)), check=False)
    of_logits = PGD(0.1)(Ensemble([model, undefended]).eval(), x, y)
    assert result["mean logits"].accuracy == pytest.approx(
        mixture.expected_correct(of_logits, y).double().mean().item()
    )
    transferred = PGD(0.1)(model, x, y)
    expected = mixture.expected_correct(transferred, y).double().mean().item()
    assert result["first member"].accuracy == pytest.approx(expected)
    assert result.eps == 0.1


def test_wider_is_one_model_of_five(tiny: Dataset) -> None:
    config = resolve(recipes.get("wider"), tiny)
    assert config.model == "5xcnn-digits"
    wide = models.build("5xcnn-digits", tiny.shape, 3)
    assert isinstance(wide, Ensemble)
    assert len(wide) == 5
    assert not torch.equal(wide[0][1][0].weight, wide[1][1][0].weight)
    assert resolve(recipes.get("wider"), tiny, model="cnn9").model == "5xcnn9"
    assert resolve(recipes.get("wider"), tiny, model="5xcnn9").model == "5xcnn9"
    assert resolve(recipes.get("deeper"), tiny).model == "resnet152"
    assert resolve(recipes.get("deeper"), tiny, model="cnn9").model == "cnn9"
    with pytest.raises(InputError, match="unknown model 'cnn-digit'"):
        models.build("3xcnn-digit")


def test_a_trained_network_is_fine_tuned(tiny: Dataset, tmp_path, capsys) -> None:
    """From a run or a file, for other classes too; a resumed run does not need the file."""
    boost("at", tiny, epochs=1, out=tmp_path / "single", device="cpu")
    weights = tmp_path / "single" / "members" / "01.safetensors"
    still = {"lr": 1e-12, "epochs": 1, "device": "cpu"}
    kept = mrboost.load(tmp_path / "single")
    for first, rounds in ((tmp_path / "single", 1), (weights, 1), (weights, 2)):
        out = tmp_path / f"{first.name}-{rounds}"
        tuned = boost("mrboost", tiny, first=first, rounds=rounds, out=out, **still)
        for mine, theirs in zip(tuned[0].parameters(), kept[0].parameters(), strict=True):
            assert torch.allclose(mine, theirs, atol=1e-5)
    assert parameters_agree(boost("at", tiny, first=weights, **still)[0], tuned[0])

    two = replace(tiny, **{s: getattr(tiny, s)[getattr(tiny, s).y < 2] for s in ("train", "test")})
    two = replace(two, classes=("a", "b"))
    bare = {k.removeprefix("1."): v for k, v in kept[0].state_dict().items() if k[0] == "1"}
    torch.save({"state_dict": bare}, tmp_path / "bare.pt")
    tuned = boost("at", two, first=tmp_path / "bare.pt", out=tmp_path / "two", **still)
    assert "are for other classes, and start anew" in capsys.readouterr().err
    first, tuned = (next(network.parameters()) for network in (kept[0], tuned[0]))
    assert torch.allclose(first, tuned, atol=1e-5)
    (tmp_path / "bare.pt").unlink()
    boost("at", two, out=tmp_path / "two", resume=True, **still)
    torch.save(bare | {"extra": torch.ones(1)}, tmp_path / "bare.pt")
    with pytest.raises(InputError, match=r"not fit model 'cnn-digits': Unexpected .*extra"):
        boost("at", tiny, first=tmp_path / "bare.pt", out=tmp_path / "none", **still)
    assert not (tmp_path / "none").exists()


def test_a_run_is_loaded_to_be_trained(trained) -> None:
    model = mrboost.load(trained, trainable=True)
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not mrboost.load(trained).training
