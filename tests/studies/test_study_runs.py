"""The runs of studies, through the command line: which are made, gone on with,
gathered, or refused."""

from __future__ import annotations

import json
import re
import shutil
import statistics
from pathlib import Path

import pytest

import mrboost
from commands import SMOKE, cells, outcome, write_pictures
from mrboost.cli.main import main
from mrboost.studies import run as running


def test_a_finished_study_does_nothing_again(smoke: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("this is done already")

    for name in ("boost", "evaluate_run"):
        monkeypatch.setattr(running, name, never)
    monkeypatch.setattr(running.datasets, "load", never)
    for name in ("mce-wrn", "boosting", "adaptive"):
        pages = [(smoke / f"{name}.md").read_text()]
        assert main(["study", name, *SMOKE, "--out", str(smoke)]) == 0
        pages.append((smoke / f"{name}.md").read_text())
        # Studies that came later have measured some clean accuracies again: the seconds are
        # those of the last time.
        first, second = (re.sub(r"and \d+ s of evaluation", "", page) for page in pages)
        assert first == second


def test_an_interrupted_study_goes_on(tmp_path, monkeypatch, capsys) -> None:
    real, trained = running.boost, []

    def boost(recipe: mrboost.Recipe, *arguments: object, **options: object) -> object:
        if trained == ["at"]:
            trained.append("interrupted")
            raise KeyboardInterrupt
        trained.append(recipe.name)
        return real(recipe, *arguments, **options)

    monkeypatch.setattr(running, "boost", boost)
    command = [
        "study",
        "curves",
        "--scale",
        "smoke",
        "--device",
        "cpu",
        "--n",
        "12",
        "--out",
        str(tmp_path),
    ]
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
        assert (
            main(
                [
                    *command,
                    "--part",
                    f"{part}/2",
                    "--out",
                    str(tmp_path / f"machine{part}"),
                    "--json",
                ]
            )
            == 0
        )
        assert len(json.loads(capsys.readouterr().out)["runs"]) == 2
    assert not (tmp_path / "machine1/curves.md").exists()
    for part in (1, 2):
        shutil.copytree(tmp_path / f"machine{part}/runs", tmp_path / "all/runs", dirs_exist_ok=True)

    def no_data(*_: object, **__: object) -> None:
        raise AssertionError("gathering needs no data")

    monkeypatch.setattr(running.datasets, "load", no_data)
    assert main([*command, "--out", str(tmp_path / "all")]) == 0
    values = [
        outcome(tmp_path / f"all/runs/digits-cnn-digits-at-mce-1x1-seed{seed}", "pgd-20", "last")
        for seed in (0, 1)
    ]
    ours = cells(tmp_path / "all/curves.md")["AT + MCE"]["ours"]
    assert ours[3] == f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"
    assert "mean ± standard deviation over the seeds" in (tmp_path / "all/curves.md").read_text()
    # Gathered without them: what is known stands
    for weights in tmp_path.glob("all/runs/*/members"):
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
    """``evaluate`` adds to the same results: an L2 ball of the same number, and PGD-100
    through the mean logits."""
    shutil.copytree(smoke, tmp_path / "out")
    at, pinot = (
        str(tmp_path / f"out/runs/digits-cnn-digits-{name}-seed0")
        for name in ("at-1x1", "pinot-2x1")
    )
    options = ["--n", "40", "--no-check", "--device", "cpu", "--quiet"]
    assert (
        main(["evaluate", at, "--attack", "pgd-20", "--norm", "L2", "--eps", "0.1", *options]) == 0
    )
    assert main(["evaluate", pinot, "--attack", "fgsm", "--adaptive", *options]) == 0
    for name in ("curves", "pinot"):
        assert main(["study", name, *SMOKE, "--out", str(tmp_path / "out")]) == 0
        assert cells(tmp_path / f"out/{name}.md") == cells(smoke / f"{name}.md")
    assert outcome(Path(pinot), "mean logits", members=2) < 100, "evaluate's own is there as well"


def test_only_some_rows(tmp_path, capsys) -> None:
    command = [
        "study",
        "samplers",
        *SMOKE,
        "--n",
        "10",
        "--out",
        str(tmp_path),
        "--only",
        "Sampler.Rnd",
        "at2",
    ]
    assert main(command) == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        "digits-cnn-digits-at2-1x1-seed0",
        "digits-cnn-digits-mrboost-rnd-1x1-seed0",
    ]
    table = cells(tmp_path / "samplers.md")
    assert table["Sampler.All"]["ours"] == ["–", "–"]
    assert "–" not in table["AT(2)"]["ours"]
    assert "2 of 5 trainings are finished" in (tmp_path / "samplers.md").read_text()


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
    attacks = [
        [o["attack"] for o in evaluation["outcomes"]] for evaluation in results["evaluations"]
    ]
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
        "> Trained on `mirror-jpeg` in the place of cifar10. A JPEG mirror's accuracies lie "
        "some points below" in page
    )
    assert "> Options other than the scale's: rounds = 3." in page
    assert "to see that it runs; not all of it here, see below)" in page


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
        main(
            [
                "study",
                "mce-wrn",
                *SMOKE,
                "--only",
                "AT",
                "--seeds",
                "0",
                "1",
                "--lr",
                "0.05",
                "--out",
                str(smoke),
            ]
        )
        == 2
    )
    assert "another configuration (lr: 0.1 -> 0.05)" in capsys.readouterr().err
    assert sorted((smoke / "runs").iterdir()) == trained


def test_data_of_the_same_name_are_not_taken_for_one_another(tmp_path, monkeypatch, capsys) -> None:
    """Runs are named after the last part of a folder's path. A copy elsewhere is as good;
    other images are not."""
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
