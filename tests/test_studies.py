"""Studies through the command line: all of them at scale smoke, going on, splitting, pages, and one-line errors."""

from __future__ import annotations

import json
import math
import re
import shutil
import statistics
from pathlib import Path

import pytest
import torch
from scipy.stats import binomtest

import mrboost
from mrboost import studies
from mrboost.cli import main
from mrboost.studies import running

SMOKE = ["--scale", "smoke", "--device", "cpu", "--quiet"]


def cells(page: Path) -> dict[str, dict[str, list[str]]]:
    """The first table of a page: method, then ours / paper / difference, to the cells."""
    found: dict[str, dict[str, list[str]]] = {}
    method = ""
    for line in page.read_text().split("| method |")[1].split("\n\n")[0].splitlines()[2:]:
        name, kind, *values = [cell.strip() for cell in line.strip("|").split("|")]
        method = name or method
        found.setdefault(method, {})[kind] = values
    return found


def outcome(run: Path, attack: str, weights: str = "best", members: int = 1) -> float:
    for evaluation in json.loads((run / "results.json").read_text())["evaluations"]:
        if (evaluation["weights"], evaluation["members"]) == (weights, members):
            return 100 * {o["attack"]: o["accuracy"] for o in evaluation["outcomes"]}[attack]
    raise AssertionError(f"{run} has no such evaluation")


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All studies at scale smoke."""
    out = tmp_path_factory.mktemp("studies")
    for name in studies.STUDIES:
        assert main(["study", name, *SMOKE, "--out", str(out)]) == 0, name
    return out


# Pages


@pytest.mark.parametrize("name", studies.STUDIES)
def test_every_study_writes_its_pages(name: str, smoke: Path) -> None:
    markdown, html = ((smoke / f"{name}.{kind}").read_text() for kind in ("md", "html"))
    assert f"`mrboost study {name} --scale smoke --device cpu --quiet --out {smoke}`" in markdown
    assert f"torch {torch.__version__}" in markdown
    assert "Hardware: " in markdown
    assert "http" not in html.replace("http://www.w3.org", ""), "the page must load nothing"
    for note in studies.report(name).notes:
        assert note in markdown
    for picture in re.findall(r"!\[\w+\]\((.*?)\)", markdown):
        assert (smoke / picture).read_text().startswith("<?xml")
    assert html.count("data:image/svg+xml;base64") == markdown.count("![")
    study = studies.get(name)
    assert ("![" in markdown) == bool(study.plot or study.draw)
    if study.draw is None:
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
        ours = [outcome(run, attack, weights) for weights in ("best", "last") for attack in ("clean", "pgd-20")]
        assert table[label]["ours"] == [f"{value:.2f}" for value in ours]
        theirs = [float(value) for value in table[label]["paper"]]
        assert table[label]["difference"] == [f"{a - b:+.2f}" for a, b in zip(ours, theirs, strict=True)]


def test_rows_are_compared_point_by_point(smoke: Path) -> None:
    page = (smoke / "mce-resnet18.md").read_text()
    points = []
    for recipe in ("at-mce", "at"):
        results = json.loads((smoke / f"runs/digits-cnn-digits-{recipe}-1x1-seed0/results.json").read_text())
        last = next(e for e in results["evaluations"] if e["weights"] == "last")
        points.append(next(o["correct"] for o in last["outcomes"] if o["attack"] == "pgd-20"))
    ours, theirs = points
    split = sum(a > b for a, b in zip(ours, theirs, strict=True)), sum(a < b for a, b in zip(ours, theirs, strict=True))
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
    assert json.loads((smoke / "runs/digits-cnn-digits-wider-1x1-seed0/config.json").read_text())["model"] == (
        "5xcnn-digits"
    )


def test_seconds_are_the_median_after_the_first_epoch(smoke: Path) -> None:
    lines = (smoke / "runs/digits-cnn-digits-at-1x3-seed0/metrics.jsonl").read_text().splitlines()
    seconds = [json.loads(line)["seconds"] for line in lines]
    assert cells(smoke / "overhead.md")["AT"]["ours"] == [f"{statistics.median(seconds[1:]):.2f}"]


def test_pinot_is_attacked_in_three_ways(smoke: Path) -> None:
    run = smoke / "runs/digits-cnn-digits-pinot-2x1-seed0"
    names = ("clean", "first member", "mean logits", "mean probabilities")
    kept = ("clean", *(f"{name}, pgd-20" for name in names[1:]))
    expected = [f"{outcome(run, name, members=2):.2f}" for name in kept]
    assert cells(smoke / "pinot.md")["Pinot"]["ours"][:4] == expected
    assert "| AT − Pinot (mean probabilities) |" in (smoke / "pinot.md").read_text()


def test_the_cost_is_that_of_the_studys_own_evaluations(smoke: Path, tmp_path: Path) -> None:
    """Other studies, and ``evaluate``, add theirs to the same results."""
    shutil.copytree(smoke, tmp_path / "out")
    results = tmp_path / "out/runs/digits-cnn-digits-at-1x1-seed0/results.json"
    found = json.loads(results.read_text())
    for evaluation in found["evaluations"]:
        for known in evaluation["outcomes"]:
            known["seconds"] = 1000 if known["attack"] == "pgd-20" else 10**6 if known["attack"] == "cw" else 0
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
    assert "hardware is not a list" in capsys.readouterr().err


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
    assert "Seconds of an epoch, the median after the first. Accuracy, %, on 40 test images: ± 15.5 at 50 %." in page


def test_more_rounds_than_the_papers_stand_in_order(tmp_path: Path) -> None:
    command = ["study", "boosting", *SMOKE, "--rounds", "10", "--only", "mrboost", "--n", "5", "--out", str(tmp_path)]
    assert main(command) == 0
    head = next(line for line in (tmp_path / "boosting.md").read_text().splitlines() if line.startswith("| method |"))
    assert re.findall(r"members (\d+), clean", head) == [str(count) for count in range(1, 11)]


def test_studies_share_their_trainings(smoke: Path) -> None:
    names = {path.name for path in (smoke / "runs").iterdir()}
    assert len(names) == 26
    assert sum("-at-mce-1x1-" in name for name in names) == 1, "for mce-resnet18, mce-wrn, samplers, curves, adaptive"


def test_first_rounds_are_trained_once(smoke: Path) -> None:
    """Eight boosted rows and two losses: six first rounds, and those of at and at-mce, are not trained again."""
    firsts: dict[bytes, set[str]] = {}
    for folder in (smoke / "runs").glob("*-2x1-*"):
        config = json.loads((folder / "config.json").read_text())
        if config["recipe"]["sampler"]["part"] == "All":
            assert "first" in config, "at and at-mce came before"
            weights = (folder / "members" / "01.safetensors").read_bytes()
            firsts.setdefault(weights, set()).add(config["recipe"]["sampler"]["loss"])
    assert sorted(firsts.values(), key=str) == [{"cross_entropy"}, {"margin_cross_entropy"}]


def test_a_first_round_of_other_options_is_not_taken(smoke: Path, tmp_path: Path) -> None:
    shutil.copytree(smoke / "runs", tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs" / "digits-cnn-digits-mrboost-2x1-seed0")
    digits = mrboost.data.load("digits")
    for options, twin in (({}, "at-mce"), ({"awp": 0.01}, "awp-mce"), ({"lr": 0.05}, None), ({"epochs": 2}, None)):
        request = studies.Request(studies.get("boosting"), studies.get_scale("smoke"), tmp_path, options=options)
        (training,) = running.choose(request.trainings(), ["mrboost"])
        found = running.find_first_round(training, digits)
        assert (found and found.name) == (twin and f"digits-cnn-digits-{twin}-1x1-seed0")
    assert running.find_first_round(running.choose(request.trainings(), ["wider"])[0], digits) is None


def test_contours_and_theory_state_closed_forms(smoke: Path) -> None:
    e = math.exp
    mce = -5 + math.log(e(5) + e(4) + 1) + 4 + math.log(e(-5) + e(-4) + 1)
    ce = 2 * (-5 + math.log(e(5) + e(4) + 1))
    assert f"| (5, 4, 0) | {mce:.3f} | {ce:.3f} | {mce - ce:+.3f} |" in (smoke / "mce-contours.md").read_text()
    theory = (smoke / "theory.md").read_text()
    assert "| margin boosting | holds | 0.8000 | holds, τ = 0.2 |" in theory
    assert "| RobBoost | fails | -1.0000 | fails |" in theory
    assert "within the bound in all 200 rounds" in theory
    assert f"| {3 * math.log(714) / math.sqrt(100):.4f} | yes |" in theory


# Going on, and splitting


def test_a_finished_study_does_nothing_again(smoke: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("this is done already")

    for name in ("boost", "evaluate_run"):
        monkeypatch.setattr(running, name, never)
    monkeypatch.setattr(running.datasets, "load", never)
    for name in ("mce-wrn", "boosting", "adaptive"):
        before = (smoke / f"{name}.md").read_text()
        assert main(["study", name, *SMOKE, "--out", str(smoke)]) == 0
        assert (smoke / f"{name}.md").read_text() == before


def test_an_interrupted_study_goes_on(tmp_path, monkeypatch, capsys) -> None:
    real, trained = running.boost, []

    def boost(recipe: mrboost.Recipe, *arguments: object, **options: object) -> object:
        if trained == ["at"]:
            trained.append("interrupted")
            raise KeyboardInterrupt
        trained.append(recipe.name)
        return real(recipe, *arguments, **options)

    monkeypatch.setattr(running, "boost", boost)
    command = ["study", "curves", "--scale", "smoke", "--device", "cpu", "--n", "12", "--out", str(tmp_path)]
    assert main(command) == 130
    err = capsys.readouterr().err
    assert "curves: 1 of 2, AT on digits, seed 0" in err
    assert "the study again goes on" in err
    metrics = tmp_path / "runs/digits-cnn-digits-at-1x1-seed0/metrics.jsonl"
    before = metrics.read_bytes(), metrics.stat().st_mtime_ns
    assert main(command) == 0
    assert trained == ["at", "interrupted", "at-mce"]
    assert (metrics.read_bytes(), metrics.stat().st_mtime_ns) == before
    assert "2 of 2 trainings are finished" in (tmp_path / "curves.md").read_text()
    out, err = capsys.readouterr()
    assert "curves: 2 of 2, AT + MCE on digits, seed 0" in err
    assert str(tmp_path / "curves.html") in out


def test_parts_are_gathered_into_one_page(tmp_path, monkeypatch, capsys) -> None:
    command = ["study", "curves", *SMOKE, "--n", "12", "--seeds", "0", "1"]
    for part in (1, 2):
        assert main([*command, "--part", f"{part}/2", "--out", str(tmp_path / f"machine{part}"), "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["runs"]) == 2
    assert not (tmp_path / "machine1/curves.md").exists()
    for part in (1, 2):
        shutil.copytree(tmp_path / f"machine{part}/runs", tmp_path / "all/runs", dirs_exist_ok=True)

    def no_data(*_: object, **__: object) -> None:
        raise AssertionError("gathering needs no data")

    monkeypatch.setattr(running.datasets, "load", no_data)
    assert main([*command, "--out", str(tmp_path / "all")]) == 0
    values = [
        outcome(tmp_path / f"all/runs/digits-cnn-digits-at-mce-1x1-seed{seed}", "pgd-20", "last") for seed in (0, 1)
    ]
    ours = cells(tmp_path / "all/curves.md")["AT + MCE"]["ours"]
    assert ours[3] == f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"
    assert "mean ± standard deviation over the seeds" in (tmp_path / "all/curves.md").read_text()
    for weights in tmp_path.glob("all/runs/*/members"):  # gathered without them: what is known stands
        shutil.rmtree(weights)
    (tmp_path / "all/curves.md").unlink()
    assert main([*command, "--out", str(tmp_path / "all")]) == 0
    assert cells(tmp_path / "all/curves.md")["AT + MCE"]["ours"] == ours


def test_more_images_are_evaluated_where_fewer_were(tmp_path) -> None:
    command = ["study", "adaptive", *SMOKE, "--out", str(tmp_path)]
    for n, said in ((10, "10 test images: "), (45, "45 test images: "), (1000, "all test images.")):
        assert main([*command, "--n", str(n)]) == 0
        assert f"on {said}" in (tmp_path / "adaptive.md").read_text(), "more than the scale's, too"
    run = tmp_path / "runs/digits-cnn-digits-at-mce-1x1-seed0"
    found = json.loads((run / "results.json").read_text())
    assert [evaluation["n"] for evaluation in found["evaluations"]] == [10, 45, 355]
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 1, "not trained again"


def test_figures_of_another_ball_or_attack_are_not_the_studys(smoke: Path, tmp_path: Path) -> None:
    """``evaluate`` adds to the same results: an L2 ball of the same number, and PGD-100 through the mean logits."""
    shutil.copytree(smoke, tmp_path / "out")
    at, pinot = (str(tmp_path / f"out/runs/digits-cnn-digits-{name}-seed0") for name in ("at-1x1", "pinot-2x1"))
    options = ["--n", "40", "--no-check", "--device", "cpu", "--quiet"]
    assert main(["evaluate", at, "--attack", "pgd-20", "--norm", "L2", "--eps", "0.1", *options]) == 0
    assert main(["evaluate", pinot, "--attack", "fgsm", "--adaptive", *options]) == 0
    for name in ("curves", "pinot"):
        assert main(["study", name, *SMOKE, "--out", str(tmp_path / "out")]) == 0
        assert cells(tmp_path / f"out/{name}.md") == cells(smoke / f"{name}.md")
    assert outcome(Path(pinot), "mean logits", members=2) < 100, "evaluate's own is there as well"


def test_a_plot_without_lines_is_left_out(tmp_path: Path) -> None:
    assert main(["study", "boosting", *SMOKE, "--n", "10", "--out", str(tmp_path), "--only", "deeper"]) == 0
    assert "![" not in (tmp_path / "boosting.md").read_text(), "no row has a second round"


def test_only_some_rows(tmp_path, capsys) -> None:
    command = ["study", "samplers", *SMOKE, "--n", "10", "--out", str(tmp_path), "--only", "Sampler.Rnd", "at2"]
    assert main(command) == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        "digits-cnn-digits-at2-1x1-seed0",
        "digits-cnn-digits-mrboost-rnd-1x1-seed0",
    ]
    table = cells(tmp_path / "samplers.md")
    assert table["Sampler.All"]["ours"] == ["–", "–"]
    assert "–" not in table["AT(2)"]["ours"]
    assert "2 of 5 trainings are finished" in (tmp_path / "samplers.md").read_text()


def test_the_page_shows_what_is_there(tmp_path) -> None:
    """Rows that have not met a new attack keep their other numbers; seconds are those of the seeds that are there."""
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


def write_pictures(root: Path, names: str) -> None:
    """Three classes, darker to brighter: 24 images each to train on and 4 to test."""
    from PIL import Image

    generator = torch.Generator().manual_seed(0)
    for split, count in (("train", 24), ("test", 4)):
        for label, name in enumerate(names):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = (40 * torch.rand(8, 8, 3, generator=generator) + 80 * label).byte().numpy()
                Image.fromarray(pixels).save(folder / f"{i}.png")


def test_more_attacks_images_of_a_folder_and_doubts(tmp_path, capsys) -> None:
    write_pictures(tmp_path / "mirror-jpeg", "abc")
    out = tmp_path / "out"
    options = [
        "--out",
        str(out),
        "--data",
        f"folder:{tmp_path / 'mirror-jpeg'}",
        "--also",
        "pgd-mce-5",
        "--rounds",
        "3",
    ]
    command = ["study", "boosting", *SMOKE, *options, "--only", "mrboost"]
    assert main(command) == 0
    run = out / "runs/mirror-jpeg-cnn-digits-mrboost-3x1-seed0"
    results = json.loads((run / "results.json").read_text())
    attacks = [[o["attack"] for o in evaluation["outcomes"]] for evaluation in results["evaluations"]]
    assert attacks == [["clean", "pgd-20"]] * 2 + [["clean", "pgd-20", "pgd-mce-5"]]
    assert {(e["n"], e["whole"]) for e in results["evaluations"]} == {(12, True)}
    assert results["hardware"]

    results["evaluations"][0]["doubts"] = [{"check": "made up", "message": "a reason to doubt"}]
    (run / "results.json").write_text(json.dumps(results))
    capsys.readouterr()
    assert main(command) == 0
    page = capsys.readouterr().out
    assert "| members 3, pgd-20 | members 3, pgd-mce-5 |" in page
    assert cells(out / "boosting.md")["MRBoost.NN + Ind + PerInit"]["ours"][-1] == (
        f"{outcome(run, 'pgd-mce-5', members=3):.2f}"
    )
    assert "- MRBoost.NN + Ind + PerInit: a reason to doubt" in page
    assert (
        "> Trained on `mirror-jpeg` in the place of cifar10. A JPEG mirror's accuracies lie some points below" in page
    )
    assert "> Options other than the scale's: rounds = 3." in page
    assert "to see that it runs; not all of it here, see below)" in page


# Errors


def test_a_run_of_another_configuration_is_refused(smoke: Path, capsys) -> None:
    capsys.readouterr()
    for changed in (
        ["--lr", "0.05"],
        ["--schedule", "one-cycle"],
        ["--ema", "0.9"],
        ["--steps", "3"],
        ["--steps", "0"],
    ):
        assert main(["study", "curves", *SMOKE, *changed, "--out", str(smoke)]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert f"{changed[0][2:]}: " in err if changed[1] != "0" else "at least 1, got 0" in err
        assert "choose another --out" in err or changed[1] == "0"
    # A row that is only shown, too, and before any training: the page could not show it.
    trained = sorted((smoke / "runs").iterdir())
    assert (
        main(["study", "mce-wrn", *SMOKE, "--only", "AT", "--seeds", "0", "1", "--lr", "0.05", "--out", str(smoke)])
        == 2
    )
    assert "another configuration (lr: 0.1 -> 0.05)" in capsys.readouterr().err
    assert sorted((smoke / "runs").iterdir()) == trained


def test_data_of_the_same_name_are_not_taken_for_one_another(tmp_path, monkeypatch, capsys) -> None:
    """Runs are named after the last part of a folder's path. A copy elsewhere is as good; other images are not."""
    for place, order in (("here", 1), ("there", -1)):
        write_pictures(tmp_path / place / "digits", "abc"[::order])
    (tmp_path / "copy").mkdir()
    shutil.copytree(tmp_path / "here/digits", tmp_path / "copy/digits")

    def study(data: str) -> int:
        return main(["study", "adaptive", *SMOKE, "--data", data, "--out", str(tmp_path / "out")])

    assert study(f"folder:{tmp_path / 'here/digits'}") == 0
    for data in (f"folder:{tmp_path / 'there/digits'}", "digits"):
        capsys.readouterr()
        assert study(data) == 2
        assert f"here/digits' -> '{data}'" in capsys.readouterr().err
    assert study(f"folder:{tmp_path / 'copy/digits'}") == 0
    assert study("folder:/on/another/machine/digits") == 0, "gathered runs need no data"
    monkeypatch.chdir(tmp_path / "here")
    assert study("folder:digits") == 0
