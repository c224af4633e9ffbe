"""The runs of studies, through the command line: which are made, gone on with, gathered, or
refused."""

from __future__ import annotations

import json
import shutil
import statistics

import mrboost
from commands import SMOKE, cells, done, error_of, outcome, results_of, study, write_pictures
from mrboost.cli.main import main
from mrboost.studies import run as running


def test_an_interrupted_study_goes_on(tmp_path, monkeypatch, capsys) -> None:
    real, trained = running.boost, []

    def boost(recipe: mrboost.Recipe, *arguments: object, **options: object) -> object:
        trained.append(recipe.name)
        if trained == ["at", "at-mce"]:
            raise KeyboardInterrupt
        return real(recipe, *arguments, **options)

    monkeypatch.setattr(running, "boost", boost)
    command = ["study", "curves", "--scale", "smoke", "--device", "cpu", "--n", "12"]
    command += ["--out", str(tmp_path)]
    assert main(command) == 130
    err = capsys.readouterr().err
    assert "curves: 1 of 2, AT on digits, seed 0" in err
    assert "the study again goes on" in err
    metrics = tmp_path / "runs/digits-cnn-digits-at-1x1-seed0/metrics.jsonl"
    before = metrics.read_bytes(), metrics.stat().st_mtime_ns
    assert main(command) == 0
    assert trained == ["at", "at-mce", "at-mce"]
    assert (metrics.read_bytes(), metrics.stat().st_mtime_ns) == before
    assert "2 of 2 trainings are finished" in (tmp_path / "curves.md").read_text()
    out, err = capsys.readouterr()
    assert "curves: 2 of 2, AT + MCE on digits, seed 0" in err
    assert str(tmp_path / "curves.html") in out


def test_parts_are_gathered_into_one_page(tmp_path, monkeypatch, capsys) -> None:
    asked = ["--n", "12", "--seeds", "0", "1"]
    for part in (1, 2):
        place = tmp_path / f"machine{part}"
        done("study", "curves", *SMOKE, *asked, "--part", f"{part}/2", "--out", place, "--json")
        assert len(json.loads(capsys.readouterr().out)["runs"]) == 2
        assert not (place / "curves.md").exists()
        shutil.copytree(place / "runs", tmp_path / "all/runs", dirs_exist_ok=True)
    monkeypatch.setattr(running.datasets, "load", None)  # gathering needs no data
    page = study("curves", tmp_path / "all", *asked)
    runs = [tmp_path / f"all/runs/digits-cnn-digits-at-mce-1x1-seed{seed}" for seed in (0, 1)]
    values = [outcome(run, "pgd-20", "last") for run in runs]
    ours = cells(tmp_path / "all/curves.md")["AT + MCE"]["ours"]
    assert ours[3] == f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"
    assert "mean ± standard deviation over the seeds" in page
    for weights in tmp_path.glob("all/runs/*/members"):
        shutil.rmtree(weights)
    study("curves", tmp_path / "all", *asked)
    found = cells(tmp_path / "all/curves.md")["AT + MCE"]["ours"]
    assert found == ours, "gathered without weights, what is known stands"


def test_more_images_are_evaluated_where_fewer_were(tmp_path) -> None:
    for n, said in ((10, "10 test images: "), (45, "45 test images: "), (1000, "all test images.")):
        page = study("adaptive", tmp_path, "--n", str(n))
        assert f"on {said}" in page, "more than the scale's, too"
    run = tmp_path / "runs/digits-cnn-digits-at-mce-1x1-seed0"
    assert [evaluation["n"] for evaluation in results_of(run)["evaluations"]] == [10, 45, 355]
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 1, "not trained again"


def test_only_some_rows(tmp_path) -> None:
    page = study("samplers", tmp_path, "--n", "10", "--only", "Sampler.Rnd", "at2")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        "digits-cnn-digits-at2-1x1-seed0",
        "digits-cnn-digits-mrboost-rnd-1x1-seed0",
    ]
    table = cells(tmp_path / "samplers.md")
    assert table["Sampler.All"]["ours"] == ["–", "–"]
    assert "–" not in table["AT(2)"]["ours"]
    assert "2 of 5 trainings are finished" in page


def test_more_attacks_images_of_a_folder_and_doubts(tmp_path) -> None:
    write_pictures(tmp_path / "mirror-jpeg", "abc")
    options = ["--data", f"folder:{tmp_path / 'mirror-jpeg'}", "--also", "pgd-mce-5"]
    options += ["--rounds", "3", "--only", "mrboost"]
    study("boosting", tmp_path, *options)
    run = tmp_path / "runs/mirror-jpeg-cnn-digits-mrboost-3x1-seed0"
    results = results_of(run)
    attacks = [[o["attack"] for o in e["outcomes"]] for e in results["evaluations"]]
    assert attacks == [["clean", "pgd-20"]] * 2 + [["clean", "pgd-20", "pgd-mce-5"]]
    assert {(e["n"], e["whole"]) for e in results["evaluations"]} == {(12, True)}
    assert results["hardware"]

    results["evaluations"][0]["doubts"] = [{"check": "made up", "message": "a reason to doubt"}]
    (run / "results.json").write_text(json.dumps(results))
    page = study("boosting", tmp_path, *options)
    assert "| members 3, pgd-20 | members 3, pgd-mce-5 |" in page
    ours = cells(tmp_path / "boosting.md")["MRBoost.NN + Ind + PerInit"]["ours"]
    assert ours[-1] == f"{outcome(run, 'pgd-mce-5', members=3):.2f}"
    assert "- MRBoost.NN + Ind + PerInit: a reason to doubt" in page
    assert "> Trained on `mirror-jpeg` in the place of cifar10. A JPEG mirror's accuracies" in page
    assert "> Options other than the scale's: rounds = 3." in page
    assert "to see that it runs; not all of it here, see below)" in page


def test_a_folder_of_images_may_lie_elsewhere(tmp_path, monkeypatch, capsys) -> None:
    """Runs are named after the last part of a folder's path; built-in data are no folder."""
    write_pictures(tmp_path / "here/digits", "abc")
    out = tmp_path / "out"
    study("adaptive", out, "--data", f"folder:{tmp_path / 'here/digits'}")
    error = error_of(capsys, "study", "adaptive", *SMOKE, "--data", "digits", "--out", out)
    assert "here/digits' -> 'digits'" in error
    monkeypatch.chdir(tmp_path / "here")
    # Gathered runs need no data
    for place in ("/on/another/machine/digits", "digits"):
        study("adaptive", out, "--data", f"folder:{place}")
