"""What studies consist of before anything runs: the paper's configuration, rows that are
compared, what is refused."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import mrboost
from mrboost import studies
from mrboost.attacks import PGD
from mrboost.cli import arguments
from mrboost.cli.main import main
from mrboost.data import Dataset, Split
from mrboost.data.registry import SOURCES
from mrboost.errors import InputError
from mrboost.options import BY_NAME, TrainingOptions
from mrboost.recipes.config import describe, resolve
from mrboost.runs import Run
from mrboost.studies import run as running
from mrboost.studies import tables

SMOKE = ["--scale", "smoke", "--device", "cpu", "--quiet"]


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
    assert main(["study", *given, "--out", str(tmp_path / "out"), "--quiet"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err
    assert not (tmp_path / "out" / "runs").exists(), "found before any training"


def test_missing_data_are_found_before_any_training(tmp_path, monkeypatch, capsys) -> None:
    real = running.datasets.load
    monkeypatch.setattr(running.datasets, "load", lambda *a, **k: real(*a, **k, download=False))
    assert (
        main(
            [
                "study",
                "mce-wrn",
                "--scale",
                "full",
                "--data-dir",
                str(tmp_path),
                "--out",
                str(tmp_path / "o"),
            ]
        )
        == 2
    )
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "put cifar-10-python.tar.gz into" in err
    assert not (tmp_path / "o").exists()


OTHERS = {
    "eps": 0.2,
    "norm": "L2",
    "steps": 3,
    "step_size": 0.01,
    "batch_size": 64,
    "lr": 0.05,
    "later_lr": 0.01,
    "validation": 20,
    "select_on": "test",
    "precision": "32-true",
    "fast": "off",
    "schedule": "one-cycle",
    "ema": 0.9,
    "clip": 1.0,
    "awp": 0.01,
    "smoothing": 0.1,
    "cutmix": 0.5,
    "padding": 2,
    "flip": None,
    "start": "half",
    "aggressive": False,
    "past": "best",
}
OF_OTHER_RECIPES = {"eta", "penalty"}
IN_THE_NAME = {"model", "rounds", "epochs", "later_epochs", "seed"}


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


def test_every_option_is_told_apart() -> None:
    assert OTHERS.keys() | IN_THE_NAME | OF_OTHER_RECIPES == BY_NAME.keys()


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("kind", ["named", "folder"])
def test_an_option_left_out_is_its_default(
    kind: str, name: str, pictures: list[str], tmp_path
) -> None:
    """A run that was made with another one is not taken for it, nor one that was made
    without for one with it."""
    data = "digits" if kind == "named" else pictures[1]
    # Mirror images are usual in folders
    value = (kind == "named") if name == "flip" else OTHERS[name]
    given = {name: value} | ({"eps": 0.5} if name == "norm" else {})
    for place, made, asked in (("with", given, {}), ("without", {}, given)):
        _begin(_training(tmp_path / place, data, **made))
        assert _training(tmp_path / place, data, **made).run() is not None
        with pytest.raises(InputError, match=rf"another configuration \(.*\b{name}: "):
            _training(tmp_path / place, data, **asked).run()


def test_an_option_that_is_said_may_be_its_default(tmp_path) -> None:
    _begin(_training(tmp_path, "digits"))
    usual = {
        "validation": 144,
        "precision": "auto",
        "fast": "auto",
        "norm": "Linf",
        "ema": 0,
        "awp": 0,
        "flip": False,
    }
    assert _training(tmp_path, "digits", **usual).run() is not None


def test_the_rounds_and_epochs_are_in_the_name_of_a_run(tmp_path) -> None:
    def training(recipe: str, **options) -> studies.Training:
        request = studies.Request(
            studies.get("boosting"), studies.get_scale("smoke"), tmp_path, options=options
        )
        return next(t for t in request.trainings() if t.recipe.name == recipe)

    assert training("mrboost", later_epochs=3).folder.name.endswith("2x1-3-seed0")
    assert training("wider", later_epochs=3).folder == training("wider").folder


def test_a_recipes_own_average_is_found_again(tmp_path) -> None:
    study = studies.Study(
        "own", "A row with an average of its own", (studies.Row("strong", "strong"),)
    )
    for options, found in (({}, 0.999), ({"ema": 0.0}, None)):
        out = tmp_path / str(found)
        request = studies.Request(study, studies.get_scale("smoke"), out, options=options)
        (training,) = request.trainings()
        mrboost.boost(
            training.recipe, "digits", out=training.folder, device="cpu", **training.options
        )
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
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.split("\n\n")[0].splitlines()] == list(studies.STUDIES)
    assert [line.split()[1] for line in out.split("\n\n")[1].splitlines()] == [
        "full",
        "short",
        "smoke",
    ]


def _like(name: str) -> Dataset:
    """A few images with the name and the defaults of a real dataset."""
    source = SOURCES[name]
    y = torch.arange(2 * len(source.classes)) % len(source.classes)
    split = Split(torch.rand(len(y), *source.shape), y)
    return Dataset(name, split, split, source.classes, source.defaults)


def test_full_is_the_papers_configuration(tmp_path) -> None:
    seen = set()
    for study in studies.STUDIES.values():
        for training in studies.Request(study, studies.get_scale("full"), tmp_path).trainings():
            config = resolve(
                training.recipe, _like(training.data), **{**training.options, "validation": 2}
            )
            epochs, select_on = (3, "validation") if study.name == "overhead" else (100, "test")
            assert (config.epochs, config.batch_size, config.lr, config.select_on) == (
                epochs,
                128,
                0.1,
                select_on,
            )
            assert (config.recipe.momentum, config.recipe.weight_decay, config.recipe.steps) == (
                0.9,
                5e-4,
                10,
            )
            assert [
                config.recipe.schedule(epoch / 100) for epoch in (0, 49, 50, 74, 75, 99)
            ] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
            assert (config.eps, config.norm, config.precision, config.fast) == (
                8 / 255,
                "Linf",
                "32-true",
                "off",
            )
            assert config.step_size == pytest.approx(
                1 / 255 if training.data == "svhn" else 2 / 255
            )
            boosted = study.name == "boosting" and training.label.startswith(
                ("MRBoost", "RobBoost")
            )
            assert config.rounds == (5 if boosted else 2 if training.label == "Pinot" else 1)
            seen.add((study.name, config.data, config.model))
    resnets = {("mce-resnet18", data, "resnet18") for data in ("svhn", "cifar10", "cifar100")}
    assert seen == resnets | {("overhead", data, model) for _, data, model in resnets} | {
        ("mce-wrn", "cifar10", "wrn-34-10"),
        *(("boosting", "cifar10", model) for model in ("resnet18", "5xresnet18", "resnet152")),
        *((name, "cifar10", "resnet18") for name in ("samplers", "curves", "adaptive")),
        ("pinot", "cifar10", "cnn9"),
    }


@pytest.mark.parametrize(
    "options", [{}, {"eps": 0.1, "flip": False, "later_epochs": 3, "step_size": 0.05}]
)
def test_a_plan_gives_the_commands_of_its_trainings(options: TrainingOptions, tmp_path) -> None:
    for scale in studies.SCALES.values():
        for training in studies.Request(
            studies.get("boosting"), scale, tmp_path, options=options
        ).trainings():
            words = shlex.split(training.command())[1:]
            parsed = vars(arguments.parse(words))
            said = {key: parsed[key] for key in BY_NAME if parsed[key] is not None}
            assert said == {**training.options, "steps": training.recipe.steps}
            assert (parsed["recipe"], parsed["data"]) == (training.recipe.name, training.data)
            assert parsed["out"] == training.folder


def test_a_plan_says_what_is_left_and_does_nothing(tmp_path, capsys) -> None:
    out = ["--only", "AT", "--out", str(tmp_path / "out"), *SMOKE]
    assert main(["study", "curves", "--plan", *out]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "trainings: 1, finished: 0"
    assert lines[2] == "AT on digits, seed 0: to be trained"
    assert lines[4:] == [
        f"  {which} weights, members 1, 40 test images: pgd-20" for which in ("best", "last")
    ]
    assert not (tmp_path / "out").exists()
    assert main(["study", "curves", *out]) == 0
    capsys.readouterr()
    assert main(["study", "curves", "--plan", *out]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "trainings: 1, finished: 1"


def test_pgd_steps_as_far_as_the_paper_does_on_these_data(tmp_path) -> None:
    svhn, cifar10, *_ = {
        t.data: t
        for t in studies.Request(
            studies.get("mce-resnet18"), studies.get_scale("full"), tmp_path
        ).trainings()
    }.values()
    model = mrboost.Ensemble([torch.nn.Flatten()])
    for training, step in ((svhn, 1 / 255), (cifar10, 2 / 255)):
        x, y = torch.zeros(8, 3, 32, 32, dtype=torch.uint8), torch.arange(8) % 2
        data = Dataset(
            training.data,
            Split(x, y),
            Split(x, y),
            ("a", "b"),
            mrboost.data.defaults(training.data, 32),
        )
        # Fewer and longer steps of the training are not the judge's
        config = resolve(training.recipe, data, steps=3)
        assert config.step_size > config.judge_step == step
        run = SimpleNamespace(config=config.describe())
        found = running.attacks_of(training, run, ("fgsm", "pgd-20", "pgd-mce-20"), model)
        assert found["pgd-20"] == PGD(8 / 255, steps=20, step_size=step) == config.judge(20)
        assert found["pgd-mce-20"].step_size == step
        assert found["fgsm"].step_size == 8 / 255


def test_pairs_of_rows_pool_the_seeds_and_leave_out_what_one_lacks() -> None:
    def trained(label: str, seed: int, **columns: str) -> SimpleNamespace:
        outcomes = {
            f"cifar10/{where.replace('_', '/')}/pgd-20": {"correct": [float(c) for c in correct]}
            for where, correct in columns.items()
        }
        training = SimpleNamespace(label=label, options={"seed": seed})
        return SimpleNamespace(training=training, outcomes=outcomes)

    done = [
        trained("MRBoost.NN + Ind + PerInit", 0, best_1="11000", best_5="11111"),
        trained("MRBoost.NN + Ind + PerInit", 1, best_5="11100"),
        trained("Wider model", 0, best_1="10000"),
        trained("Wider model", 1, best_1="11110"),
        trained("Deeper model", 1, best_1="1111"),  # other images: not to be compared
    ]
    table = tables.paired_table(studies.paper_results("boosting"), done)  # type: ignore[arg-type]
    assert table.head == ["", "pgd-20"]
    # Mean over two seeds, image by image: 1, 1, 1, ½, ½ against 1, ½, ½, ½, 0. Three are
    # higher: p is 2 / 2³.
    assert table.rows == [["MRBoost.NN + Ind + PerInit − Wider model", "+30.00 (0.25)"]]


def test_one_round_of_margin_boosting_is_sampler_all(tiny: Dataset) -> None:
    boosted = mrboost.boost("mrboost", tiny, rounds=1, epochs=2, device="cpu").state_dict()
    single = mrboost.boost("at-mce", tiny, epochs=2, device="cpu").state_dict()
    assert all(torch.equal(boosted[key], single[key]) for key in single)
