"""The training loop: deterministic, crash-safe in every step, and it makes models robust."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import mrboost
from commands import same, snapshot
from mrboost import files, models, recipes
from mrboost import progress as meter
from mrboost.data import CutMix, Dataset
from mrboost.devices import make_fabric
from mrboost.errors import InputError
from mrboost.losses import Smoothed, cross_entropy, margin_cross_entropy
from mrboost.recipes import Learner, OneCycle, OnPerturbed, Piecewise, Recipe
from mrboost.recipes.config import describe, resolve
from mrboost.runs import folder as runs
from mrboost.seeds import derive
from mrboost.training import ema as average
from mrboost.training import fit as training
from mrboost.training.ema import Average
from mrboost.training.fit import begin, fit
from mrboost.training.state import FitState, best_epoch, first_eligible

SMOOTH = OnPerturbed(Smoothed(margin_cross_entropy))
# Every part at once
STRONG = replace(recipes.STRONG, objective=SMOOTH, ema=0.9, clip=1.0, cutmix=CutMix())


def test_piecewise_and_one_cycle() -> None:
    piecewise = Piecewise()
    assert [piecewise(p) for p in (0, 0.49, 0.5, 0.74, 0.75, 0.99)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01]
    )
    cycle = OneCycle(warmup=0.25)
    assert [cycle(p) for p in (0, 0.125, 0.25, 0.625, 1)] == pytest.approx([0, 0.5, 1, 0.5, 0])


def test_streams_differ_and_are_stable() -> None:
    streams = {
        derive(seed, name, i)
        for seed in (0, 1)
        for name in ("epoch", "initialise")
        for i in range(100)
    }
    assert len(streams) == 400
    assert derive(0, "epoch", 1, 0) == derive(0, "epoch", 1, 0)
    assert 0 <= min(streams) <= max(streams) < 2**63


@pytest.mark.parametrize(
    "recipe", [recipes.AT, recipes.AT2, recipes.AT_MCE, STRONG], ids=lambda r: r.name
)
def test_deterministic_under_a_seed_and_only_then(recipe: Recipe, tiny: Dataset) -> None:
    random_state = torch.get_rng_state()
    one, two, other = (mrboost.boost(recipe, tiny, seed=seed, device="cpu") for seed in (1, 1, 2))
    assert same(one, two)
    assert not torch.equal(one[0][1][0].weight, other[0][1][0].weight)
    assert torch.equal(torch.get_rng_state(), random_state), (
        "the global random state is the caller's"
    )


def test_one_step_is_sgd_on_the_objective(tiny: Dataset) -> None:
    """One full batch without momentum: the weights move by −lr · gradient of the loss on
    the perturbed images."""
    seen: list[Tensor] = []

    def recording(logits: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
        seen.append(logits.detach())
        return cross_entropy(logits, target, reduction=reduction)

    recipe = replace(
        recipes.AT,
        objective=OnPerturbed(loss=recording, scale=3.0),
        momentum=0.0,
        weight_decay=0.0,
        lr=0.5,
    )
    plain = {"batch_size": 36, "validation": 3, "padding": 0, "flip": False}
    config = resolve(recipe, tiny, epochs=1, **plain)
    learner = models.build("cnn-digits", tiny.shape, 3)
    before = {name: p.detach().clone() for name, p in learner.named_parameters()}
    fit(learner, [], tiny.train, tiny.test, config, fabric=make_fabric("cpu"))
    assert len(seen) == 1
    for name, p in learner.named_parameters():
        torch.testing.assert_close(p.detach(), before[name] - 0.5 * p.grad)
    # The gradient of the last layer's bias has a closed form: the mean of 3 (softmax − one-hot).
    last = list(learner.named_parameters())[-1][1]
    assert last.grad.sum().item() == pytest.approx(0.0, abs=1e-5)
    probabilities = seen[0].softmax(dim=1).mean(dim=0)
    frequencies = torch.bincount(tiny.train.y, minlength=3) / 36
    torch.testing.assert_close(last.grad, 3 * (probabilities - frequencies), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("decay", "effective"), [(0.05, 0.05), (0.999, 0.1)])
def test_the_average_of_weights_is_what_is_kept(
    decay: float, effective: float, tiny: Dataset
) -> None:
    """One step an epoch: after two steps it is decay · first + (1 − decay) · second, the
    decay at most 1 / 10."""

    def fitted(ema: float | None, epochs: int) -> dict[str, Tensor]:
        recipe = replace(recipes.AT, ema=ema, schedule=Piecewise(milestones=()))
        plain = {"batch_size": 36, "validation": 3, "padding": 0, "flip": False}
        config = resolve(recipe, tiny, epochs=epochs, **plain)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            learner = models.build("cnn-digits", tiny.shape, 3)
        return fit(learner, [], tiny.train, tiny.test, config, fabric=make_fabric("cpu")).last

    first, second, kept = fitted(None, 1), fitted(None, 2), fitted(decay, 2)
    for name, value in kept.items():
        if value.is_floating_point() and "running" not in name:
            torch.testing.assert_close(
                value, effective * first[name] + (1 - effective) * second[name]
            )
            assert name.startswith("0.") or not torch.equal(value, second[name])


def test_the_statistics_of_an_average_are_its_own() -> None:
    """Their mean over the batches that it was shown, of what its weights make of them;
    nothing of the learner's."""
    torch.manual_seed(0)
    learner = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)).train()
    kept = Average(learner, decay=0.5)
    for _ in range(3):  # weights that point elsewhere: their average is smaller
        with torch.no_grad():
            learner[0].weight.normal_()
        learner(torch.rand(9, 1, 8, 8))
        kept.follow(learner)
    for _ in range(2):  # what was gathered before, an epoch ago say, is forgotten
        shown = torch.rand(5, 9, 1, 8, 8)
        for count, x in enumerate(shown, start=1):
            kept.gather(lambda module, x=x: module(x), count)
    seen = [kept.module[0](x).transpose(0, 1).flatten(1) for x in shown]
    for found, statistic in (
        (kept.module[1].running_mean, "mean"),
        (kept.module[1].running_var, "var"),
    ):
        exact = torch.stack([getattr(pixels, statistic)(dim=1) for pixels in seen]).mean(0)
        torch.testing.assert_close(found, exact)
    assert (kept.module[1].running_var < learner[1].running_var).any()
    before = kept.module[1].running_mean.clone()
    kept.follow(learner)
    assert torch.equal(kept.module[1].running_mean, before)


def test_shared_weights_enter_the_average_once() -> None:
    layer = nn.Linear(3, 3)
    learner = nn.Sequential(layer, nn.ReLU(), layer)
    kept = Average(learner, decay=0.999)
    kept.follow(learner)
    first = layer.weight.detach().clone()
    with torch.no_grad():
        layer.weight.normal_()
    kept.follow(learner)
    torch.testing.assert_close(kept.module[0].weight, 0.1 * first + 0.9 * layer.weight.detach())
    assert kept.module[0].weight is kept.module[2].weight


def test_an_epoch_ends_with_the_statistics_of_its_last_batches(
    tiny: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(average, "BATCHES", 2)
    counts: list[int] = []

    class Watched(Average):
        def gather(self, see: Callable[[nn.Module], object], batch: int) -> None:
            counts.append(batch)
            super().gather(see, batch)

    monkeypatch.setattr(training, "Average", Watched)
    mrboost.boost(
        "at", tiny, model="cnn-digits", epochs=2, batch_size=8, validation=3, ema=0.9, device="cpu"
    )
    assert counts == [1, 2, 1, 2]


def test_training_makes_a_model_robust(model, undefended, digits: Dataset) -> None:
    """Seeds of an undefended network gave 56 to 65 % under PGD-20; eight epochs of
    at-mce give over 80 %."""
    x, y = digits.test.images(), digits.test.y
    robust, plain = (
        mrboost.evaluate(m, x, y, "pgd-20", eps=0.1, check=False) for m in (model, undefended)
    )
    assert robust["clean"].accuracy > 0.95
    assert plain["clean"].accuracy > 0.95
    assert robust["pgd-20"].accuracy > plain["pgd-20"].accuracy + 0.15


def test_held_out_images_are_never_trained_on(tiny: Dataset) -> None:
    """Every image has its own mean: those of the batches are exactly the images
    that were not held out."""
    seen: set[float] = set()

    @dataclass(frozen=True)
    class Spy(Learner):
        def __call__(self, turn):
            seen.update(round(value, 5) for value in turn.x.mean(dim=(1, 2, 3)).tolist())
            return super().__call__(turn)

    spied = replace(recipes.AT, sampler=Spy())
    plain = replace(tiny, defaults=replace(tiny.defaults, padding=0, flip=False))
    means = {round(value, 5) for value in tiny.train.images().mean(dim=(1, 2, 3)).tolist()}
    assert len(means) == 36
    for select_on, held in (("validation", 6), ("test", 0)):
        seen.clear()
        mrboost.boost(spied, plain, validation=6, select_on=select_on, device="cpu")
        assert seen <= means
        assert len(means - seen) == held
    _, held_out = mrboost.data.validation_split(tiny.train, 6)
    seen.clear()
    mrboost.boost(spied, plain, validation=6, device="cpu")
    assert not seen & {round(value, 5) for value in held_out.images().mean(dim=(1, 2, 3)).tolist()}


def test_tied_weights_are_saved_and_loaded(tiny: Dataset, tmp_path, forgotten: None) -> None:
    @models.register("tied")
    def tied(shape, classes):
        layer = nn.Linear(64, 64)
        return nn.Sequential(nn.Flatten(), layer, nn.ReLU(), layer, nn.Linear(64, classes))

    trained = mrboost.boost("at", tiny, model="tied", out=tmp_path / "run", device="cpu")
    assert same(mrboost.load(tmp_path / "run"), trained)


def test_a_long_epoch_is_heard_of_in_a_log(tiny: Dataset, monkeypatch, capsys) -> None:
    monkeypatch.setattr(meter, "EVERY", 0.0)
    mrboost.boost(
        "at", tiny, model="cnn-digits", epochs=2, batch_size=18, device="cpu", progress=True
    )
    lines = [
        line.partition(" (")[0].partition("  loss")[0]
        for line in capsys.readouterr().err.splitlines()
    ]
    steps = ["train: round 1/1"] * 2
    assert lines == [*steps, "epoch 1/2", *steps, "epoch 2/2"]


def test_keeps_best_and_last(trained, digits: Dataset) -> None:
    rows = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == list(range(1, 9))
    assert rows[0]["lr"] == pytest.approx(0.1)
    assert rows[-1]["lr"] == pytest.approx(0.001)
    config = json.loads((trained / "config.json").read_text())
    _, held_out = mrboost.data.validation_split(digits.train, config["validation"])
    attack = mrboost.attacks.PGD(0.1, steps=20)
    best = best_epoch(
        [row["robust"] for row in rows], resolve(recipes.AT_MCE, digits, epochs=8), len(held_out)
    )
    for which, row in (("best", rows[best - 1]), ("last", rows[-1])):
        loaded = mrboost.load(trained, which)
        result = mrboost.evaluate(
            loaded, held_out.images(), held_out.y, {"pgd": attack}, check=False
        )
        assert result["clean"].accuracy == pytest.approx(row["clean"])
        assert result["pgd"].accuracy == pytest.approx(row["robust"])


def test_divergence_keeps_the_last_good_state(tiny: Dataset, tmp_path) -> None:
    calls = 0

    def turns_nan(logits: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
        nonlocal calls
        calls += 1
        loss = cross_entropy(logits, target, reduction=reduction)
        return loss * math.nan if calls > 3 else loss  # tried once, and then one step an epoch

    recipe = replace(recipes.AT, objective=OnPerturbed(loss=turns_nan))
    with pytest.raises(
        InputError, match=r"diverged.*epoch 3, by step 1: .*in another folder, with a lower lr"
    ):
        mrboost.boost(recipe, tiny, epochs=5, out=tmp_path / "run", device="cpu")
    tensors, facts = files.read_tensors(tmp_path / "run" / "checkpoint" / "state.safetensors")
    assert facts["epoch"] == 2
    assert all(tensor.isfinite().all() for tensor in tensors.values())


@pytest.mark.parametrize(
    ("recipe", "options"),
    [(STRONG, {"epochs": 2, "steps": 2, "fast": "off"}), (recipes.MRBOOST, {"epochs": 1})],
    ids=["strong", "mrboost"],
)
def test_a_crash_at_any_write_resumes_to_the_same_result(
    recipe: Recipe, options: dict, tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rounds. A process that dies before or after one of its writes leaves the folder
    as it is copied here. The first such folder, the last and four of the others go on."""
    folder, write, crashed = tmp_path / "whole", files.replace_file, []

    def replace_file(path: Path, content: bytes) -> None:
        half = path.with_name(f".{path.name}.0.tmp")
        half.write_bytes(content[: len(content) // 2])
        keep()
        half.unlink()
        write(path, content)
        keep()

    def keep() -> None:
        crashed.append(Path(shutil.copytree(folder, tmp_path / f"crash-{len(crashed)}")))

    with monkeypatch.context() as patch:
        patch.setattr(files, "replace_file", replace_file)
        reference = mrboost.boost(recipe, tiny, rounds=2, out=folder, device="cpu", **options)
    metrics = [_without_time(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(metrics) == 2 * options["epochs"]
    assert len(crashed) > 20, "the writes were not seen: the test lost its hold"
    for left in [crashed[0], *random.Random(recipe.name).sample(crashed[1:-1], 4), crashed[-1]]:
        resumed = mrboost.boost(
            recipe, tiny, rounds=2, out=left, resume=True, device="cpu", **options
        )
        assert same(resumed, reference)
        for which in ("best", "last"):
            assert same(mrboost.load(left, which), mrboost.load(folder, which))
        lines = (left / "metrics.jsonl").read_text().splitlines()
        assert [_without_time(line) for line in lines] == metrics


def _without_time(line: str) -> dict:
    return {key: value for key, value in json.loads(line).items() if key != "seconds"}


def test_resuming_a_finished_run_changes_nothing(tiny: Dataset, tmp_path) -> None:
    first = mrboost.boost("at", tiny, out=tmp_path / "run", device="cpu")
    before = snapshot(tmp_path / "run")
    again = mrboost.boost("at", tiny, out=tmp_path / "run", resume=True, device="cpu")
    assert same(first, again)
    assert snapshot(tmp_path / "run") == before


def test_two_processes_cannot_train_in_one_folder(tiny: Dataset, tmp_path) -> None:
    mrboost.boost("at", tiny, out=tmp_path / "run", device="cpu")
    config = mrboost.runs.Run.open(tmp_path / "run").config
    with (
        mrboost.runs.Run.training(tmp_path / "run", config, resume=True),
        pytest.raises(InputError, match="another process is training"),
    ):
        mrboost.boost("at", tiny, out=tmp_path / "run", resume=True, rounds=5, device="cpu")
    assert mrboost.runs.Run.open(tmp_path / "run").config == config, "nothing is written"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": 0.0}, "eps must be positive and finite, got 0.0"),
        ({"eps": 8}, r"\(0, 1\]"),
        ({"epochs": 0}, "epochs must be a whole number in 1 … 10,000,000, got 0"),
        ({"rounds": -1}, "rounds must be a whole number"),
        ({"batch_size": 1}, "whole number in 2 …"),
        ({"lr": -1.0}, "lr must be a positive number, got -1.0"),
        ({"seed": -5}, "seed must be"),
        ({"seed": 1.5}, "seed must be"),
        ({"eps": "8/255"}, "eps must be a number, got '8/255'"),
        ({"lr": "0.1"}, "lr must be a positive number, got '0.1'"),
        ({"padding": 1.5}, "padding 1.5"),
        ({"padding": 9}, "padding must be 0 to 8, the images' size, got 9"),
        ({"lr": 1e308}, r"lr must be less than 2\*\*63, got 1e\+308"),
        ({"norm": "L2", "eps": 1e300}, r"eps must be less than 2\*\*63"),
        ({"validation": 36}, "hold out 1 to"),
        ({"select_on": "train"}, "validation, test, got 'train'"),
        ({"norm": "L2"}, "give eps for norm 'L2'"),
        ({"model": "cnn-digit"}, "did you mean cnn-digits"),
        ({"device": "cuda:99"}, "device 'cuda:99'"),
        ({"epochs": 1.5}, "whole number in 1 … 10,000,000, got 1.5"),
        ({"device": "cpu:7"}, "device 'cpu:7' is not available"),
        ({"device": "gpu"}, "device 'gpu' is not available"),
        ({"epoch": 3}, "unknown option 'epoch': did you mean epochs"),
    ],
)
def test_refuses_impossible_options(options: dict, message: str, tiny: Dataset, tmp_path) -> None:
    with pytest.raises(InputError, match=message):
        mrboost.boost("at", tiny, out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_comes_back_in_the_layout_of_the_weights(
    tiny: Dataset, tmp_path: Path
) -> None:
    """Files hold rows; a fused step of SGD refuses momentum that lies
    otherwise than its weights."""
    torch.manual_seed(0)
    run = runs.Run.create(tmp_path / "run", describe(resolve(recipes.AT, tiny), tiny))
    states = []
    for _ in range(2):
        learner = models.build("cnn-digits", tiny.shape, 3).to(memory_format=torch.channels_last)
        states.append(
            FitState(learner, torch.optim.SGD(learner.parameters(), lr=0.1, momentum=0.9))
        )
    saved, restored = states
    saved.learner(tiny.train.images()).sum().backward()
    saved.optimizer.step()
    row = {"round": 1, "loss": 1.0, "train_robust": 0.5, "clean": 0.9, "seconds": 1.0}
    for epoch, robust in enumerate((0.5, 0.48, 0.9), 1):  # the last is not in the checkpoint
        run.log(row | {"epoch": epoch, "robust": robust})
        if epoch < 3:
            saved.score(robust, resolve(recipes.AT, tiny), 100)
    saved.save(run, 1)
    restored.restore(run, 1)
    assert (restored.epoch, restored.best_epoch, restored.scores) == (2, 2, [0.5, 0.48])
    for mine, theirs in zip(restored.learner.parameters(), saved.learner.parameters(), strict=True):
        momentum = restored.optimizer.state[mine]["momentum_buffer"]
        assert momentum.stride() == mine.stride() == theirs.stride()
        assert torch.equal(momentum, saved.optimizer.state[theirs]["momentum_buffer"])


def test_epochs_are_judged_by_an_attack_that_is_the_same_for_all(tiny: Dataset) -> None:
    """TRADES trains on an attack that starts next to the image; judged by it, it would seem
    more robust than it is."""
    trades, at = (resolve(recipes.get(name), tiny) for name in ("trades", "at"))
    assert trades.attack() != at.attack()
    assert trades.judge(20) == at.judge(20)


@pytest.mark.parametrize(
    ("robust", "images", "best"),
    [
        ((0.5, 0.5, 0.4), None, 2),  # of equals the later
        ((0.5, 0.499, 0.4), None, 1),
        ((0.5, 0.48, 0.4), 100, 2),  # half a standard error is 0.025
        ((0.5, 0.474, 0.4), 100, 1),
        ((0.5, 0.48, 0.457), 100, 2),  # judged by the most robust epoch, not by the one kept
        ((0.4, 0.5, 0.48, 0.45), 100, 3),
        ((0.0, 0.0), 100, 2),
        ((1.0, 1.0, 0.999), 100, 2),
    ],
)
def test_the_best_is_the_latest_that_chance_does_not_rule_out(
    robust: tuple[float, ...], images: int | None, best: int, tiny: Dataset
) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    all_eligible = replace(recipes.AT, schedule=Piecewise(milestones=(0.0,)))
    config = resolve(
        all_eligible, tiny, epochs=len(robust), select_on="validation" if images else "test"
    )
    progress = begin(network, config, make_fabric("cpu"))
    for value, found in enumerate(robust, 1):
        nn.init.constant_(network[1].weight, value)
        progress.score(found, config, images or 100)
    assert (progress.best_epoch, progress.best["1.weight"][0, 0].item()) == (best, best)
    assert best_epoch(robust, config, images or 100) == best


@pytest.mark.parametrize(
    ("options", "epochs", "first"),
    [
        ({}, 100, 51),  # after the first decay
        ({"ema": 0.999}, 40, 21),
        ({"schedule": "one-cycle"}, 30, 21),  # the last third
        ({"schedule": "one-cycle", "ema": 0.999}, 30, 30),  # the average is at its best at the end
        ({}, 2, 2),
        ({}, 1, 1),
    ],
)
def test_only_late_epochs_are_eligible(
    options: dict, epochs: int, first: int, tiny: Dataset
) -> None:
    """As seen with mrboost-rndinit: an ensemble is at its most robust while its newest
    member is hardly trained."""
    config = resolve(recipes.AT, tiny, epochs=epochs, **options)
    assert first_eligible(config) == first
    falling = [0.9 - 0.5 * epoch / epochs for epoch in range(epochs)]
    assert best_epoch(falling, config, 10**6) == first
    for done in range(1, first):
        assert best_epoch(falling[:done], config, 10**6) == done
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    progress = begin(network, config, make_fabric("cpu"))
    for epoch, found in enumerate(falling, 1):
        nn.init.constant_(progress.kept[1].weight, epoch)
        progress.score(found, config, 10**6)
    assert (progress.best_epoch, progress.best["1.weight"][0, 0].item()) == (first, first)


@pytest.mark.parametrize(
    ("steps", "share"), [(10, 0.25), (40, 0.25), (5, 0.5), (3, 2.5 / 3), (2, 1.25), (1, 1.25)]
)
def test_fewer_steps_of_the_attack_are_longer(digits: Dataset, steps: int, share: float) -> None:
    config = resolve(recipes.AT, digits, steps=steps, eps=0.2)
    assert config.attack().steps == steps
    assert config.attack().step_size == pytest.approx(0.2 * share)
    assert config.judge(20) == mrboost.attacks.PGD(0.2, steps=20, step_size=0.05), (
        "the judge is the same for all"
    )
    assert resolve(recipes.AT, digits, steps=steps, step_size=0.01).attack().step_size == 0.01


def test_what_steps_may_be(digits: Dataset) -> None:
    for wrong in (0, -1, 2.5):
        with pytest.raises(InputError, match="steps must be a whole number"):
            resolve(recipes.AT, digits, steps=wrong)  # type: ignore[typeddict-item]
    with pytest.raises(InputError, match="'mrboost-exp' has moves of its own"):
        resolve(recipes.get("mrboost-exp"), digits, steps=3)
