"""The pages of studies, through the command line at scale smoke: what stands there
is what the runs hold."""

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
from commands import SMOKE, cells, outcome
from mrboost import studies
from mrboost.cli.main import main
from mrboost.files import read_tensors
from mrboost.studies.run import find_first_round


@pytest.mark.parametrize("name", studies.STUDIES)
def test_every_study_writes_its_pages(name: str, smoke: Path) -> None:
    markdown, html = ((smoke / f"{name}.{kind}").read_text() for kind in ("md", "html"))
    assert f"`mrboost study {name} --scale smoke --device cpu --quiet --out {smoke}`" in markdown
    assert f"torch {torch.__version__}" in markdown
    assert "Hardware: " in markdown
    assert "http" not in html.replace("http://www.w3.org", ""), "the page must load nothing"
    for note in studies.paper_results(name).notes:
        assert note in markdown
    for picture in re.findall(r"!\[\w+\]\((.*?)\)", markdown):
        assert (smoke / picture).read_text().startswith("<?xml")
    assert html.count("data:image/svg+xml;base64") == markdown.count("![")
    study = studies.get(name)
    assert ("![" in markdown) == bool(study.plot)
    assert list(cells(smoke / f"{name}.md")) == [row.label for row in study.rows]
    done = re.search(r"(\d+) of (\d+) trainings are finished", markdown)
    assert done is not None
    assert int(done[1]) == int(done[2]) == len(study.rows)
    assert re.search(r"Cost: \d+ s of training", markdown)
    assert "> **Its numbers mean nothing**" in markdown
    assert "> Trained on `digits` in the place of cifar10." in markdown


def test_cells_are_what_the_runs_hold(smoke: Path) -> None:
    table = cells(smoke / "mce-resnet18.md")
    assert table["AT + MCE"]["paper"] == ["81.13", "51.86", "84.37", "48.47"]
    for label, recipe in (("AT", "at"), ("AT + MCE", "at-mce")):
        run = smoke / "runs" / f"digits-cnn-digits-{recipe}-1x1-seed0"
        ours = [
            outcome(run, attack, weights)
            for weights in ("best", "last")
            for attack in ("clean", "pgd-20")
        ]
        assert table[label]["ours"] == [f"{value:.2f}" for value in ours]
        theirs = [float(value) for value in table[label]["paper"]]
        assert table[label]["difference"] == [
            f"{a - b:+.2f}" for a, b in zip(ours, theirs, strict=True)
        ]


def test_rows_are_compared_point_by_point(smoke: Path) -> None:
    page = (smoke / "mce-resnet18.md").read_text()
    points = []
    for recipe in ("at-mce", "at"):
        results = json.loads(
            (smoke / f"runs/digits-cnn-digits-{recipe}-1x1-seed0/results.json").read_text()
        )
        last = next(e for e in results["evaluations"] if e["weights"] == "last")
        points.append(next(o["correct"] for o in last["outcomes"] if o["attack"] == "pgd-20"))
    ours, theirs = points
    split = (
        sum(a > b for a, b in zip(ours, theirs, strict=True)),
        sum(a < b for a, b in zip(ours, theirs, strict=True)),
    )
    chance = binomtest(split[0], sum(split)).pvalue if sum(split) else 1.0
    line = next(line for line in page.splitlines() if line.startswith("| AT + MCE − AT |"))
    assert line.endswith(f"| {100 * (split[0] - split[1]) / 40:+.2f} ({chance:.2g}) |")


def test_two_rows_are_compared_once(smoke: Path) -> None:
    page = (smoke / "samplers.md").read_text()
    assert "| Sampler.All − Sampler.Rnd |" in page
    assert "| Sampler.Rnd − Sampler.All |" not in page


def test_first_rounds_that_rows_share_are_named_in_the_cost(smoke: Path) -> None:
    words = "with its validation, a first round that rows share in each of them"
    assert words in (smoke / "boosting.md").read_text()
    assert words not in (smoke / "mce-wrn.md").read_text()


def test_a_staged_study_has_every_round(smoke: Path) -> None:
    table = cells(smoke / "boosting.md")
    run = smoke / "runs" / "digits-cnn-digits-mrboost-2x1-seed0"
    expected = [outcome(run, attack, members=m) for m in (1, 2) for attack in ("clean", "pgd-20")]
    assert table["MRBoost.NN + Ind + PerInit"]["ours"] == [f"{value:.2f}" for value in expected]
    assert table["Wider model"]["ours"][2:] == ["–", "–"]
    assert json.loads((smoke / "runs/digits-cnn-digits-wider-1x1-seed0/config.json").read_text())[
        "model"
    ] == ("5xcnn-digits")


def test_seconds_are_the_median_after_the_first_epoch(smoke: Path) -> None:
    lines = (smoke / "runs/digits-cnn-digits-at-1x3-seed0/metrics.jsonl").read_text().splitlines()
    seconds = [json.loads(line)["seconds"] for line in lines]
    assert cells(smoke / "overhead.md")["AT"]["ours"] == [f"{statistics.median(seconds[1:]):.2f}"]


def test_pinot_is_attacked_in_three_ways(smoke: Path) -> None:
    run = smoke / "runs/digits-cnn-digits-pinot-2x1-seed0"
    names = ("clean", "first member", "mean logits", "mean probabilities")
    kept = ("clean", *(f"{name}, pgd-20" for name in names[1:]))
    expected = [f"{outcome(run, name, 'last', members=2):.2f}" for name in kept]
    assert cells(smoke / "pinot.md")["Pinot"]["ours"][:4] == expected
    assert "| AT − Pinot (mean probabilities) |" in (smoke / "pinot.md").read_text()


def test_the_cost_is_that_of_the_studys_own_evaluations(smoke: Path, tmp_path: Path) -> None:
    """Other studies, and ``evaluate``, add theirs to the same results."""
    shutil.copytree(smoke, tmp_path / "out")
    results = tmp_path / "out/runs/digits-cnn-digits-at-1x1-seed0/results.json"
    found = json.loads(results.read_text())
    for evaluation in found["evaluations"]:
        for known in evaluation["outcomes"]:
            known["seconds"] = (
                1000 if known["attack"] == "pgd-20" else 10**6 if known["attack"] == "cw" else 0
            )
    results.write_text(json.dumps(found))
    assert main(["study", "samplers", *SMOKE, "--out", str(tmp_path / "out")]) == 0
    cost = re.search(r"and (\d+) s of evaluation", (tmp_path / "out/samplers.md").read_text())
    assert cost is not None
    assert 1000 <= int(cost[1]) < 2000


def test_results_of_a_stranger(smoke: Path, tmp_path: Path, capsys) -> None:
    """Without points and seconds there is a page without comparisons; other things are one line."""
    shutil.copytree(smoke / "runs", tmp_path / "runs")
    results = tmp_path / "runs/digits-cnn-digits-at-1x1-seed0/results.json"
    found = json.loads(results.read_text())
    for evaluation in found["evaluations"]:
        for known in evaluation["outcomes"]:
            del known["correct"], known["seconds"]
    results.write_text(json.dumps(found))
    command = ["study", "curves", *SMOKE, "--out", str(tmp_path)]
    assert main(command) == 0
    assert cells(tmp_path / "curves.md") == cells(smoke / "curves.md")
    results.write_text(json.dumps(found | {"hardware": 3}))
    capsys.readouterr()
    assert main(command) == 2
    assert "hardware is '3'" in capsys.readouterr().err


def test_weights_that_are_gone(smoke: Path, tmp_path: Path) -> None:
    shutil.copytree(smoke / "runs", tmp_path / "runs")
    run = tmp_path / "runs/digits-cnn-digits-at-1x1-seed0"
    (run / "members/01.last.safetensors").unlink()  # of an ensemble's last epochs nobody has use
    command = ["study", "curves", *SMOKE, "--out", str(tmp_path)]
    assert main(command) == 0
    assert cells(tmp_path / "curves.md") == cells(smoke / "curves.md"), "what is known stands"
    for name in ("members", "checkpoint"):
        shutil.rmtree(run / name)
    (run / "results.json").unlink()
    assert main(command) == 0, "trained again"
    assert cells(tmp_path / "curves.md") == cells(smoke / "curves.md")


def test_accuracy_beside_seconds_is_named(smoke: Path, tmp_path: Path) -> None:
    shutil.copytree(smoke / "runs", tmp_path / "runs")
    assert main(["study", "overhead", *SMOKE, "--also", "pgd-3", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "overhead.md").read_text()
    assert (
        "Seconds of an epoch, the median after the first. Accuracy, %, on 40 test images: ± "
        "15.5 at 50 %." in page
    )


def test_more_rounds_than_the_papers_stand_in_order(pictures: list[str], tmp_path: Path) -> None:
    command = [
        "study",
        "boosting",
        *SMOKE,
        *pictures,
        "--rounds",
        "10",
        "--only",
        "mrboost",
        "--out",
        str(tmp_path),
    ]
    assert main(command) == 0
    head = next(
        line
        for line in (tmp_path / "boosting.md").read_text().splitlines()
        if line.startswith("| method |")
    )
    assert re.findall(r"members (\d+), clean", head) == [str(count) for count in range(1, 11)]


def test_studies_share_their_trainings(smoke: Path) -> None:
    names = {path.name for path in (smoke / "runs").iterdir()}
    assert len(names) == 26
    assert sum("-at-mce-1x1-" in name for name in names) == 1, (
        "for mce-resnet18, mce-wrn, samplers, curves, adaptive"
    )


def test_first_rounds_are_trained_once(smoke: Path) -> None:
    """Eight boosted rows and two losses: six first rounds, and those of at and at-mce,
    are not trained again."""
    firsts: dict[bytes, set[str]] = {}
    for folder in (smoke / "runs").glob("*-2x1-*"):
        config = json.loads((folder / "config.json").read_text())
        if config["recipe"]["sampler"]["part"] == "All":
            assert "first" in config, "at and at-mce came before"
            tensors, _ = read_tensors(folder / "members" / "01.safetensors")
            weights = b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors))
            firsts.setdefault(weights, set()).add(config["recipe"]["sampler"]["loss"])
    assert sorted(firsts.values(), key=str) == [{"cross_entropy"}, {"margin_cross_entropy"}]


def test_a_first_round_of_other_options_is_not_taken(smoke: Path, tmp_path: Path) -> None:
    shutil.copytree(smoke / "runs", tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs" / "digits-cnn-digits-mrboost-2x1-seed0")
    digits = mrboost.data.load("digits")
    for options, twin in (
        ({}, "at-mce"),
        ({"awp": 0.01}, "awp-mce"),
        ({"lr": 0.05}, None),
        ({"epochs": 2}, None),
    ):
        request = studies.Request(
            studies.get("boosting"), studies.get_scale("smoke"), tmp_path, options=options
        )
        (training,) = studies.choose(request.trainings(), ["mrboost"])
        found = find_first_round(training, digits)
        assert (found and found.name) == (twin and f"digits-cnn-digits-{twin}-1x1-seed0")
    assert find_first_round(studies.choose(request.trainings(), ["wider"])[0], digits) is None


def test_a_plot_without_lines_is_left_out(tmp_path: Path) -> None:
    assert (
        main(["study", "boosting", *SMOKE, "--n", "10", "--out", str(tmp_path), "--only", "deeper"])
        == 0
    )
    assert "![" not in (tmp_path / "boosting.md").read_text(), "no row has a second round"


def test_the_page_shows_what_is_there(tmp_path) -> None:
    """Rows that have not met a new attack keep their other numbers; seconds are those of the
    seeds that are there."""
    command = ["study", "curves", *SMOKE, "--n", "10", "--out", str(tmp_path)]
    assert main(command) == 0
    before = cells(tmp_path / "curves.md")["AT + MCE"]["ours"]
    metrics = tmp_path / "runs/digits-cnn-digits-at-mce-1x1-seed0/metrics.jsonl"
    metrics.write_text(json.dumps(json.loads(metrics.read_text()) | {"seconds": 1000}))
    assert main([*command, "--seeds", "0", "1", "--only", "AT", "--also", "pgd-3"]) == 0
    page = (tmp_path / "curves.md").read_text()
    assert "best, pgd-3" in page
    ours = cells(tmp_path / "curves.md")
    assert ours["AT + MCE"]["ours"] == [*before, "–", "–"]
    assert all("±" in cell for cell in ours["AT"]["ours"])
    assert "2 of 4 trainings are finished" in page
    assert "AT + MCE 1000 s." in page
