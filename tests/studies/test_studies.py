"""The pages of studies, through the command line at scale smoke: what stands there is what the runs
hold."""

from __future__ import annotations

import json
import re
import shutil
import statistics
from pathlib import Path

import pytest
import torch
from scipy.stats import binomtest

import mrboost
from commands import SMOKE, cells, done, error_of, outcome, results_of, study
from mrboost import studies
from mrboost.attacks.adaptive import adaptive
from mrboost.evaluation import EvaluationOptions
from mrboost.files import read_tensors
from mrboost.runs.evaluate_run import Request, evaluate_run
from mrboost.studies import page as pages
from mrboost.studies import run as running
from mrboost.studies.run import find_first_round

AT = "runs/digits-cnn-digits-at-1x1-seed0"
AT_MCE = "runs/digits-cnn-digits-at-mce-1x1-seed0"


@pytest.fixture
def copy(smoke: Path, tmp_path: Path) -> Path:
    """The runs of all studies, to be changed."""
    shutil.copytree(smoke / "runs", tmp_path / "runs")
    return tmp_path


@pytest.mark.parametrize("name", studies.STUDIES)
def test_every_study_writes_its_pages(name: str, smoke: Path) -> None:
    markdown, html = ((smoke / f"{name}.{kind}").read_text() for kind in ("md", "html"))
    asked, rows = studies.get(name), len(studies.get(name).rows)
    for words in (
        f"`mrboost study {name} --scale smoke --device cpu --quiet --out {smoke}`",
        f"torch {torch.__version__}",
        "Hardware: ",
        f"{rows} of {rows} trainings are finished",
        "> **Its numbers mean nothing**",
        "> Trained on `digits` in the place of cifar10.",
        *asked.notes,
    ):
        assert words in markdown
    assert "http" not in html.replace("http://www.w3.org", ""), "the page must load nothing"
    assert "<b><b>Its numbers mean nothing</b>" in html
    assert f"<li><code>mrboost study {name} " in html
    for picture in re.findall(r"!\[\w+\]\((.*?)\)", markdown):
        assert (smoke / picture).read_text().startswith("<?xml")
    assert html.count("data:image/svg+xml;base64") == markdown.count("![") == bool(asked.plot)
    assert list(cells(smoke / f"{name}.md")) == [row.label for row in asked.rows]


def test_cells_are_what_the_runs_hold(smoke: Path) -> None:
    table = cells(smoke / "mce-resnet18.md")
    assert table["AT + MCE"]["paper"] == ["81.13", "51.86", "84.37", "48.47"]
    for label, run in (("AT", smoke / AT), ("AT + MCE", smoke / AT_MCE)):
        ours = [outcome(run, a, w) for w in ("best", "last") for a in ("clean", "pgd-20")]
        theirs = [float(value) for value in table[label]["paper"]]
        assert table[label]["ours"] == [f"{value:.2f}" for value in ours]
        assert table[label]["difference"] == [
            f"{a - b:+.2f}" for a, b in zip(ours, theirs, strict=True)
        ]


def test_rows_are_compared_point_by_point_and_once(smoke: Path) -> None:
    points = []
    for run in (AT_MCE, AT):
        last = next(e for e in results_of(smoke / run)["evaluations"] if e["weights"] == "last")
        points.append(next(o["correct"] for o in last["outcomes"] if o["attack"] == "pgd-20"))
    better = sum(a > b for a, b in zip(*points, strict=True))
    worse = sum(a < b for a, b in zip(*points, strict=True))
    chance = binomtest(better, better + worse).pvalue if better + worse else 1.0
    page = (smoke / "mce-resnet18.md").read_text()
    line = next(line for line in page.splitlines() if line.startswith("| AT + MCE − AT |"))
    assert line.endswith(f"| {100 * (better - worse) / 40:+.2f} ({chance:.2g}) |")
    page = (smoke / "samplers.md").read_text()
    assert "| Sampler.All − Sampler.Rnd |" in page
    assert "| Sampler.Rnd − Sampler.All |" not in page


def test_a_staged_study_has_every_round(smoke: Path) -> None:
    table = cells(smoke / "boosting.md")
    run = smoke / "runs" / "digits-cnn-digits-mrboost-2x1-seed0"
    expected = [outcome(run, attack, members=m) for m in (1, 2) for attack in ("clean", "pgd-20")]
    assert table["MRBoost.NN + Ind + PerInit"]["ours"] == [f"{value:.2f}" for value in expected]
    assert table["Wider model"]["ours"][2:] == ["–", "–"]
    wider = json.loads((smoke / "runs/digits-cnn-digits-wider-1x1-seed0/config.json").read_text())
    assert wider["model"] == "5xcnn-digits"


def test_seconds_are_the_median_after_the_first_epoch(smoke: Path) -> None:
    lines = (smoke / "runs/digits-cnn-digits-at-1x3-seed0/metrics.jsonl").read_text().splitlines()
    seconds = [json.loads(line)["seconds"] for line in lines]
    assert cells(smoke / "overhead.md")["AT"]["ours"] == [f"{statistics.median(seconds[1:]):.2f}"]


def test_pinot_is_attacked_in_three_ways(smoke: Path) -> None:
    run = smoke / "runs/digits-cnn-digits-pinot-2x1-seed0"
    kept = ["clean"] + [f"{way}, pgd-20" for way in ("first member", "mean logits")]
    kept.append("mean probabilities, pgd-20")
    expected = [f"{outcome(run, name, 'last', members=2):.2f}" for name in kept]
    assert cells(smoke / "pinot.md")["Pinot"]["ours"][:4] == expected
    assert "| AT − Pinot (mean probabilities) |" in (smoke / "pinot.md").read_text()


def test_the_cost_is_that_of_the_studys_own_evaluations(copy: Path, smoke: Path) -> None:
    """Other studies, and ``evaluate``, add theirs to the same results."""
    words = "with its validation, a first round that rows share in each of them"
    assert words in (smoke / "boosting.md").read_text()
    assert words not in (smoke / "mce-wrn.md").read_text()
    found = results_of(copy / AT)
    seconds = {"pgd-20": 1000, "cw": 10**6}
    for evaluation in found["evaluations"]:
        for known in evaluation["outcomes"]:
            known["seconds"] = seconds.get(known["attack"], 0)
    (copy / AT / "results.json").write_text(json.dumps(found))
    cost = re.search(r"and (\d+) s of evaluation", study("samplers", copy))
    assert cost is not None
    assert 1000 <= int(cost[1]) < 2000


def test_results_of_a_stranger(copy: Path, smoke: Path, capsys) -> None:
    """Without points and seconds there is a page without comparisons; other things are one line."""
    found = results_of(copy / AT)
    for evaluation in found["evaluations"]:
        for known in evaluation["outcomes"]:
            del known["correct"], known["seconds"]
    (copy / AT / "results.json").write_text(json.dumps(found))
    study("curves", copy)
    assert cells(copy / "curves.md") == cells(smoke / "curves.md")
    (copy / AT / "results.json").write_text(json.dumps(found | {"hardware": 3}))
    assert "hardware is '3'" in error_of(capsys, "study", "curves", *SMOKE, "--out", copy)


def test_weights_that_are_gone(copy: Path, smoke: Path) -> None:
    (copy / AT / "members/01.last.safetensors").unlink()
    study("curves", copy)
    assert cells(copy / "curves.md") == cells(smoke / "curves.md"), "what is known stands"
    for name in ("members", "checkpoint"):
        shutil.rmtree(copy / AT / name)
    (copy / AT / "results.json").unlink()
    study("curves", copy)
    assert cells(copy / "curves.md") == cells(smoke / "curves.md"), "trained again"


def test_accuracy_beside_seconds_is_named(copy: Path) -> None:
    said = "Seconds of an epoch, the median after the first. Accuracy, %, on 40 test images: ± 15.5"
    assert said in study("overhead", copy, "--also", "pgd-3")


def test_more_rounds_than_the_papers_stand_in_order(tmp_path: Path) -> None:
    boosting, smoke_scale = studies.get("boosting"), studies.get_scale("smoke")
    request = studies.Request(boosting, smoke_scale, tmp_path, options={"rounds": 10})
    measured = {f"cifar10/best/{count}/clean": [50.0] for count in range(10, 0, -1)}
    values = {row.label: measured for row in boosting.rows}
    head = pages.main_table(request, [], values).head
    clean = [cell for cell in head if cell.endswith("clean")]
    assert clean == [f"members {count}, clean" for count in range(1, 11)]


def test_trainings_and_first_rounds_are_shared(smoke: Path) -> None:
    """Eight boosted rows and two losses: six first rounds, and those of at and at-mce, are not
    trained again."""
    names = [path.name for path in (smoke / "runs").iterdir()]
    assert len(names) == 26
    assert sum("-at-mce-1x1-" in name for name in names) == 1, "of five studies"
    firsts: dict[bytes, set[str]] = {}
    for folder in (smoke / "runs").glob("*-2x1-*"):
        config = json.loads((folder / "config.json").read_text())
        if config["recipe"]["sampler"]["part"] == "All":
            assert "first" in config, "at and at-mce came before"
            tensors, _ = read_tensors(folder / "members" / "01.safetensors")
            weights = b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors))
            firsts.setdefault(weights, set()).add(config["recipe"]["sampler"]["loss"])
    assert sorted(firsts.values(), key=str) == [{"cross_entropy"}, {"margin_cross_entropy"}]


@pytest.mark.parametrize(
    ("options", "row", "twin"),
    [
        ({}, "mrboost", "at-mce"),
        ({"awp": 0.01}, "mrboost", "awp-mce"),
        ({"lr": 0.05}, "mrboost", None),
        ({"epochs": 2}, "mrboost", None),
        ({"epochs": 2}, "wider", None),
    ],
)
def test_a_first_round_of_other_options_is_not_taken(
    options: dict, row: str, twin: str | None, copy: Path
) -> None:
    shutil.rmtree(copy / "runs" / "digits-cnn-digits-mrboost-2x1-seed0")
    boosting, smoke_scale = studies.get("boosting"), studies.get_scale("smoke")
    request = studies.Request(boosting, smoke_scale, copy, options=options)
    (training,) = studies.choose(request.trainings(), [row])
    found = find_first_round(training, mrboost.data.load("digits"))
    assert (found and found.name) == (twin and f"digits-cnn-digits-{twin}-1x1-seed0")


def test_the_page_shows_what_is_there(copy: Path, smoke: Path) -> None:
    """Rows that have not met a new attack keep their other numbers; seconds are those of the seeds
    that are there; a plot without lines is left out."""
    before = cells(smoke / "curves.md")["AT + MCE"]["ours"]
    metrics = copy / AT_MCE / "metrics.jsonl"
    metrics.write_text(json.dumps(json.loads(metrics.read_text()) | {"seconds": 1000}))
    page = study("curves", copy, "--seeds", "0", "1", "--only", "AT", "--also", "pgd-3")
    assert "best, pgd-3" in page
    ours = cells(copy / "curves.md")
    assert ours["AT + MCE"]["ours"] == [*before, "–", "–"]
    assert all("±" in cell for cell in ours["AT"]["ours"])
    assert "2 of 4 trainings are finished" in page
    assert "AT + MCE 1000 s." in page
    for run in (copy / "runs").glob("*boost*-2x1*"):
        shutil.rmtree(run)
    assert "![" not in study("boosting", copy, "--only", "deeper"), "no row has a second round"


def test_a_finished_study_does_nothing_again(
    copy: Path, smoke: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("boost", "evaluate_run"):
        monkeypatch.delattr(running, name)
    monkeypatch.delattr(running.datasets, "load")
    for name in ("mce-wrn", "boosting", "adaptive"):
        pages = (smoke / f"{name}.md").read_text(), study(name, copy).replace(str(copy), str(smoke))
        # Studies that came later have measured some clean accuracies again: the seconds are those
        # of the last time
        first, second = (re.sub(r"and \d+ s of evaluation", "", page) for page in pages)
        assert first == second


def test_figures_of_another_ball_or_attack_are_not_the_studys(copy: Path, smoke: Path) -> None:
    """``evaluate`` adds to the same results: an L2 ball of the same number, and PGD-100 through
    the mean logits."""
    pinot = copy / "runs/digits-cnn-digits-pinot-2x1-seed0"
    options = ["--n", "40", "--no-check", "--device", "cpu", "--quiet"]
    done("evaluate", copy / AT, "--attack", "pgd-20", "--norm", "L2", "--eps", "0.1", *options)
    evaluate_run(
        pinot,
        lambda mixture: {"mean logits": adaptive(mixture, 0.1)["mean logits"]},
        Request(n=40),
        EvaluationOptions(check=False),
    )
    for name in ("curves", "pinot"):
        study(name, copy)
        assert cells(copy / f"{name}.md") == cells(smoke / f"{name}.md")
    assert outcome(pinot, "mean logits", members=2) < 100, "evaluate's own is there as well"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (["--lr", "0.05"], "another configuration (lr: 0.1 -> 0.05)"),
        (["--schedule", "one-cycle"], "schedule: "),
        (["--ema", "0.9"], "ema: "),
        (["--steps", "3"], "steps: "),
    ],
)
def test_a_run_of_another_configuration_is_refused(
    changed: list[str], message: str, smoke: Path, capsys
) -> None:
    """Of a row that is only shown, too, and before any training: the page could not show it."""
    trained = sorted((smoke / "runs").iterdir())
    for more in ([], ["--only", "AT", "--seeds", "0", "1"]):
        error = error_of(capsys, "study", "mce-wrn", *SMOKE, *more, *changed, "--out", smoke)
        assert message in error
        assert "or another --out" in error
    assert sorted((smoke / "runs").iterdir()) == trained
