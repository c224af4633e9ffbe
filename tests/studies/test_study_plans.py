"""What studies consist of before anything runs: the paper's configuration, rows that are
compared, what is refused."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import mrboost
from commands import SMOKE, error_of
from mrboost import studies
from mrboost.attacks import PGD
from mrboost.cli import arguments
from mrboost.cli.main import main
from mrboost.data import Dataset, Split
from mrboost.data.sources import SOURCES
from mrboost.errors import InputError
from mrboost.options import BY_NAME, TrainingOptions
from mrboost.recipes.config import describe, resolve
from mrboost.runs import Run
from mrboost.studies import page as pages
from mrboost.studies import run as running


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["boostin"], "unknown study 'boostin': did you mean boosting?"),
        ([], "mrboost study --list"),
        (["boosting", "--scale", "long"], "unknown scale 'long'"),
        (["boosting", "--only", "MRBoost.NN + Ind"], "did you mean MRBoost.NN + Ind + "),
        (["boosting", "--also", "pgd"], "unknown attack 'pgd'"),
        (["boosting", "--part", "5/4"], "'5/4' is not a part such as 2/4"),
        (["boosting", "--data", "folder:nowhere"], "nowhere"),
        (["boosting", "--data", "digits", "mnist"], "give one"),
        (["curves", "--scale", "smoke", "--data", "digits", "digits"], "give one"),
        (["boosting", "--scale", "smoke", "--model", "resnet19"], "unknown model 'resnet19'"),
        (["curves", "--scale", "smoke", "--seeds", "0", "0"], "seeds must differ, got 0 0"),
        (["samplers", "--scale", "smoke", "--rounds", "3"], "leave --rounds out"),
        (["samplers", "--scale", "smoke", "--smoothing", "0.1"], "trains on pairs"),
        (
            ["samplers", "--scale", "smoke", "--later-epochs", "3"],
            "later_epochs is of the rounds after the first",
        ),
        (
            ["curves", "--scale", "smoke", "--steps", "0"],
            "steps must be a whole number of at least 1, got 0",
        ),
    ],
)
def test_mistakes_are_one_line(given: list[str], words: str, tmp_path, capsys) -> None:
    assert words in error_of(capsys, "study", *given, "--out", tmp_path / "out", "--quiet")
    assert not (tmp_path / "out").exists(), "found before any training"


def test_missing_data_are_found_before_any_training(tmp_path, monkeypatch, capsys) -> None:
    real = running.datasets.load
    monkeypatch.setattr(running.datasets, "load", lambda *a, **k: real(*a, **k, download=False))
    where = ["--data-dir", tmp_path, "--out", tmp_path / "out"]
    message = error_of(capsys, "study", "mce-wrn", "--scale", "full", *where)
    assert "put cifar-10-python.tar.gz into" in message
    assert not (tmp_path / "out").exists()


def trainings(study: str, scale: str, out: Path, **how) -> list[studies.Training]:
    request = studies.Request(studies.get(study), studies.get_scale(scale), out, **how)
    return request.trainings()


def _training(out: Path, data: str, **options) -> studies.Training:
    """Two rounds of margin boosting; the scale says nothing but the number of epochs."""
    scale = studies.Scale("bare", "", {"epochs": 1}, models={"resnet18": "cnn-digits"})
    request = studies.Request(
        studies.get("boosting"), scale, out, (data,), options={"rounds": 2, **options}
    )
    return next(training for training in request.trainings() if training.recipe.name == "mrboost")


def _begin(training: studies.Training) -> Path:
    """Its folder as a training leaves it; what was made is read from config.json alone."""
    data = mrboost.data.load(training.data)
    return Run.create(
        training.folder, describe(resolve(training.recipe, data, **training.options), data)
    ).folder


@pytest.mark.parametrize("kind", ["named", "folder"])
def test_an_option_left_out_is_its_default(kind: str, pictures: list[str], tmp_path) -> None:
    """A run that was made with another one is not taken for it, nor one that was made without for
    one with it; which options count is tested beside their list."""
    data = "digits" if kind == "named" else pictures[1]
    usual = {"precision": "auto", "fast": "auto", "norm": "Linf", "ema": 0, "awp": 0}
    _begin(_training(tmp_path / "without", data))
    assert _training(tmp_path / "without", data, **usual).run() is not None
    for given in (
        {"lr": 0.05},
        {"norm": "L2", "eps": 0.5},
        {"steps": 3},
        {"validation": 5},
        {"awp": 0.01},
        {"past": "best"},
        {"flip": kind == "named"},  # mirror images are usual in folders
    ):
        name = next(iter(given))
        _begin(_training(tmp_path / name, data, **given))
        assert _training(tmp_path / name, data, **given).run() is not None
        for place, asked in ((name, {}), ("without", given)):
            with pytest.raises(InputError, match=rf"another configuration \(.*\b{name}: "):
                _training(tmp_path / place, data, **asked).run()


def test_the_rounds_and_epochs_are_in_the_name_of_a_run(tmp_path) -> None:
    for later in ({}, {"later_epochs": 3}):
        names = {
            training.recipe.name: training.folder.name
            for training in trainings("boosting", "smoke", tmp_path, options=later)
        }
        assert names["mrboost"].endswith("2x1-3-seed0" if later else "2x1-seed0")
        assert names["wider"].endswith("1x1-seed0")


def test_a_recipes_own_average_is_found_again(tmp_path) -> None:
    study = replace(studies.get("adaptive"), rows=(studies.Row("strong", "strong"),))
    for options, found in (({}, 0.999), ({"ema": 0.0}, None)):
        request = studies.Request(
            study, studies.get_scale("smoke"), tmp_path / str(found), options=options
        )
        (training,) = request.trainings()
        _begin(training)
        run = training.run()
        assert run is not None
        assert run.config["recipe"]["ema"] == found


def test_autoattack_sees_at_most_the_scales_images(tmp_path) -> None:
    for scale, n, expected in (
        ("short", None, (None, 1000)),
        ("short", 500, (500, 500)),
        ("short", 2000, (2000, 1000)),
        ("full", None, (None, None)),
        ("full", 2000, (2000, 2000)),
    ):
        request = studies.Request(studies.get("mce-wrn"), studies.get_scale(scale), tmp_path, n=n)
        assert (request.images("pgd-20"), request.images("autoattack")) == expected


def test_list_names_every_study_and_scale(capsys) -> None:
    assert main(["study", "--list"]) == 0
    listed, scales = capsys.readouterr().out.split("\n\n")
    first = [line.split() for line in listed.splitlines() if line[0] != " "]
    assert [words[0] for words in first] == list(studies.STUDIES)
    named = [line.split() for line in scales.splitlines() if line[0] != " "]
    assert [words[1] for words in named] == list(studies.SCALES)


def _like(name: str) -> Dataset:
    """A few images with the name and the defaults of a real dataset."""
    source = SOURCES[name]
    y = torch.arange(2 * len(source.classes)) % len(source.classes)
    split = Split(torch.rand(len(y), *source.shape), y)
    return Dataset(name, split, split, source.classes, source.defaults)


def test_full_is_the_papers_configuration(tmp_path) -> None:
    seen = set()
    for name in studies.STUDIES:
        for training in trainings(name, "full", tmp_path):
            given = {**training.options, "validation": 2}
            config = resolve(training.recipe, _like(training.data), **given)
            recipe = config.recipe
            epochs, select_on = (3, "validation") if name == "overhead" else (100, "test")
            assert (config.epochs, config.select_on) == (epochs, select_on)
            assert (config.batch_size, config.lr) == (128, 0.1)
            assert (recipe.momentum, recipe.weight_decay, recipe.steps) == (0.9, 5e-4, 10)
            rates = [recipe.schedule(epoch / 100) for epoch in (0, 49, 50, 74, 75, 99)]
            assert rates == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
            assert (config.eps, config.norm) == (8 / 255, "Linf")
            assert (config.precision, config.fast) == ("32-true", "off")
            step = 1 / 255 if training.data == "svhn" else 2 / 255
            assert config.step_size == pytest.approx(step)
            boosted = name == "boosting" and "Boost" in training.row.label
            pinot = training.row.label == "Pinot"
            assert config.rounds == (5 if boosted else 2 if pinot else 1)
            seen.add((name, config.data, config.model))
    three = {(data, "resnet18") for data in ("svhn", "cifar10", "cifar100")}
    assert seen == {(name, *what) for name in ("mce-resnet18", "overhead") for what in three} | {
        ("mce-wrn", "cifar10", "wrn-34-10"),
        *(("boosting", "cifar10", model) for model in ("resnet18", "5xresnet18", "resnet152")),
        *((name, "cifar10", "resnet18") for name in ("samplers", "curves", "adaptive")),
        ("pinot", "cifar10", "cnn9"),
    }


@pytest.mark.parametrize(
    "options", [{}, {"eps": 0.1, "flip": False, "later_epochs": 3, "step_size": 0.05}]
)
@pytest.mark.parametrize("scale", studies.SCALES)
def test_a_plan_gives_the_commands_of_its_trainings(
    scale: str, options: TrainingOptions, tmp_path
) -> None:
    for training in trainings("boosting", scale, tmp_path, options=options):
        parsed = vars(arguments.parse(shlex.split(training.command())[1:]))
        said = {key: parsed[key] for key in BY_NAME if parsed[key] is not None}
        assert said == {**training.options, "steps": training.recipe.steps}
        assert (parsed["recipe"], parsed["data"]) == (training.recipe.name, training.data)
        assert parsed["out"] == training.folder


def test_a_plan_says_what_is_left_and_does_nothing(smoke: Path, tmp_path, capsys) -> None:
    plan = ["study", "curves", "--plan", "--only", "AT", *SMOKE, "--out"]
    assert main([*plan, str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "trainings: 1, finished: 0"
    assert lines[2] == "AT on digits, seed 0: to be trained"
    assert lines[4:] == [
        f"  {which} weights, members 1, 40 test images: pgd-20" for which in ("best", "last")
    ]
    assert not (tmp_path / "out").exists()
    assert main([*plan, str(smoke)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "trainings: 1, finished: 1"


@pytest.mark.parametrize(("data", "step"), [("svhn", 1 / 255), ("cifar10", 2 / 255)])
def test_pgd_steps_as_far_as_the_paper_does_on_these_data(data: str, step: float) -> None:
    # Fewer and longer steps of the training are not the judge's
    config = resolve(mrboost.recipes.get("at"), _like(data), steps=3)
    assert config.step_size > config.judge_step == step
    run = Run(Path(), config.describe())
    model = mrboost.Ensemble([torch.nn.Flatten()])
    found = running.attacks_of(run, ("fgsm", "pgd-20", "pgd-mce-20"), model)
    assert found["pgd-20"] == PGD(8 / 255, steps=20, step_size=step) == config.judge(20)
    assert found["pgd-mce-20"].step_size == step
    assert found["fgsm"].step_size == 8 / 255


def test_pairs_of_rows_pool_the_seeds_and_leave_out_what_one_lacks() -> None:
    def trained(label: str, seed: int, **columns: str) -> SimpleNamespace:
        outcomes = {
            f"cifar10/{where.replace('_', '/')}/pgd-20": {"correct": [float(c) for c in correct]}
            for where, correct in columns.items()
        }
        return SimpleNamespace(label=label, seed=seed, outcomes=outcomes)

    done = [
        trained("MRBoost.NN + Ind + PerInit", 0, best_1="11000", best_5="11111"),
        trained("MRBoost.NN + Ind + PerInit", 1, best_5="11100"),
        trained("Wider model", 0, best_1="10000"),
        trained("Wider model", 1, best_1="11110"),
        trained("Deeper model", 1, best_1="1111"),  # other images: not to be compared
    ]
    table = pages.paired_table(studies.get("boosting").claims, done)  # type: ignore[arg-type]
    assert table.head == ["", "pgd-20"]
    # Mean over two seeds, image by image: 1, 1, 1, ½, ½ against 1, ½, ½, ½, 0. Three are
    # higher: p is 2 / 2³.
    assert table.rows == [["MRBoost.NN + Ind + PerInit − Wider model", "+30.00 (0.25)"]]


def test_one_round_of_margin_boosting_is_sampler_all(tiny: Dataset) -> None:
    boosted = mrboost.boost("mrboost", tiny, rounds=1, epochs=2, device="cpu").state_dict()
    single = mrboost.boost("at-mce", tiny, epochs=2, device="cpu").state_dict()
    assert all(torch.equal(boosted[key], single[key]) for key in single)
