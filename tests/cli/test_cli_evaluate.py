"""evaluate, reweight and report, as a user types them: what they print, what they
keep, what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import mrboost
from commands import error_of, json_of, snapshot
from mrboost.attacks import APGD, FAB, FGSM, PGD, Square, as_attack, autoattack
from mrboost.cli.main import main
from mrboost.data import Dataset, Split
from mrboost.errors import NanLogitsError
from mrboost.evaluation import EvaluationOptions
from mrboost.files import read_tensors, write_tensors
from mrboost.runs import Run
from mrboost.runs.compare import SideBySide, text_table
from mrboost.runs.evaluate_run import Request, draw, evaluate_run


@pytest.fixture
def quick_autoattack(monkeypatch: pytest.MonkeyPatch) -> None:
    """AutoAttack with the same stages of a few steps each."""
    monkeypatch.setitem(
        autoattack.VERSIONS,
        "standard",
        lambda eps, norm: (
            APGD(eps, norm, steps=5),
            APGD(eps, norm, targets=2, steps=5),
            FAB(eps, norm, targets=2, steps=5),
            Square(eps, norm, steps=30),
        ),
    )


def test_train_evaluate_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    options = ["--data", "digits", "--epochs", "1", "--eps", "1/10", "--device", "cpu", "--quiet"]
    summary = json_of(capsys, "train", "at", *options, "--out", folder)
    assert summary["rounds"][0]["best"]["epoch"] == 1
    config = json.loads((folder / "config.json").read_text())
    assert config["recipe"]["name"] == "at"
    assert config["eps"] == 0.1
    assert config["model"] == "cnn-digits"

    result = json_of(
        capsys, "evaluate", folder, "--attack", "fgsm,pgd-3", "--n", "20", "--weights", "best,last"
    )
    best, last = result["evaluations"]
    assert [o["attack"] for o in best["outcomes"]] == ["clean", "fgsm", "pgd-3"]
    assert (best["weights"], last["weights"], last["n"], last["members"]) == ("best", "last", 20, 1)
    assert main(["evaluate", str(folder), "--attack", "cw", "--n", "20", "--quiet"]) == 0
    assert "cw" in capsys.readouterr().out
    kept = json.loads((folder / "results.json").read_text())["evaluations"]
    assert [(e["weights"], [o["attack"] for o in e["outcomes"]]) for e in kept] == [
        ("last", ["clean", "fgsm", "pgd-3"]),
        ("best", ["fgsm", "pgd-3", "clean", "cw"]),
    ]

    assert (
        main(["report", str(folder), "--n", "20", "--plots", str(tmp_path / "plots"), "--quiet"])
        == 0
    )
    assert str(folder / "report.html") in capsys.readouterr().out
    page = (folder / "report.html").read_text()
    assert page.count("data:image/svg+xml;base64") == 4
    assert page.count("data:image/png;base64") >= 3
    assert "Class by class" in page
    plots = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert plots == ["loss.svg", "margins.svg", "robustness.svg", "training.svg"]
    assert "http" not in page.replace("http://www.w3.org", ""), "the page must load nothing"
    both = [
        str(folder),
        f"{folder}/../{folder.name}",
        "--out",
        str(tmp_path / "both.html"),
        "--plots",
        str(tmp_path / "both"),
        "--quiet",
    ]
    assert main(["report", *both, "--n", "20"]) == 0
    assert (tmp_path / "both" / "minutes.svg").exists()

    quick = ["train", "at", "--epochs", "1", "--device", "cpu", "--quiet"]
    assert main([*quick, "--out", str(tmp_path / "other"), "--eps", "0.2", "--awp", "0.02"]) == 0
    assert main([*quick, "--out", str(tmp_path / "l2"), "--eps", "0.5", "--norm", "L2"]) == 0
    refused = error_of(capsys, "report", folder, tmp_path / "l2", "--out", tmp_path / "mixed.html")
    assert "the runs are of different norms (Linf, L2): report each alone" in refused
    both[1:4] = [str(tmp_path / "other"), "--out", str(tmp_path / "mixed.html")]
    assert main(["report", *both, "--n", "20"]) == 0
    page = (tmp_path / "mixed.html").read_text()
    assert "Linf perturbations of eps = 0.1, 0.2." in page
    assert "<tr><td>awp</td><td>0</td><td>0.02</td></tr>" in page
    assert "<tr><td>eps</td><td>0.1</td><td>0.2</td></tr>" in page
    assert (
        "Not evaluated yet. For the table of test accuracies run<br><code>mrboost evaluate "
        f"{tmp_path}/other" in page
    )
    margins, curve = (
        (tmp_path / "both" / f"{name}.svg").read_text() for name in ("margins", "robustness")
    )
    assert "Margins under attack, at the training eps" in margins
    assert curve.count("training eps") == 2


@pytest.mark.usefixtures("quick_autoattack")
def test_autoattack_adaptive_examples_and_doubts(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The attacks that fit, on few images; what they leave in the folder, the table, the page."""
    examples = tmp_path / "examples.npz"
    found = json_of(
        capsys,
        "evaluate",
        run,
        "--attack",
        "fgsm",
        "--adaptive",
        "--n",
        "10",
        "--eps",
        "0.2",
        "--examples",
        examples,
    )
    outcomes = {outcome["attack"]: outcome for outcome in found["evaluations"][0]["outcomes"]}
    assert list(outcomes) == ["clean", "fgsm", "autoattack", "apgd-mce"]
    assert [stage["attack"] for stage in outcomes["autoattack"]["stages"]] == [
        "apgd-ce",
        "apgd-t",
        "fab-t",
        "square",
    ]
    assert sorted(np.load(examples)) == ["apgd-mce", "autoattack", "clean", "fgsm", "y"]
    assert not (run / "checkpoint" / "evaluation").exists()
    results = json.loads((run / "results.json").read_text())
    results["evaluations"][-1]["doubts"] = [
        {"check": "made-up", "message": "a <b>made-up</b> doubt"}
    ]
    (run / "results.json").write_text(json.dumps(results))
    assert (
        main(["report", str(run), "--n", "20", "--quiet", "--out", str(tmp_path / "page.html")])
        == 0
    )
    assert "worst case" in capsys.readouterr().out
    page = (tmp_path / "page.html").read_text()
    assert "Reasons to doubt these figures" in page
    assert "a &lt;b&gt;made-up&lt;/b&gt; doubt" in page
    assert "those of one classifier" in error_of(
        capsys, "evaluate", run, "--weights", "best,last", "--examples", examples
    )


def test_several_radii_are_a_curve(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = [
        "evaluate",
        str(run),
        "--attack",
        "fgsm",
        "--n",
        "30",
        "--eps",
        "0.2,1/20,0.1",
        "--no-check",
        "--quiet",
    ]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()[-4:]
    assert lines[0].split() == ["eps", "clean", "fgsm"]
    assert [line.split()[0] for line in lines[1:]] == ["0.05", "0.1", "0.2"]
    document = json_of(capsys, *command)
    found, (curve,) = document["evaluations"], document["curves"]
    figures = [f"{100 * e['outcomes'][1]['accuracy']:.2f}" for e in found]
    drawn = [
        (point["eps"], f"{100 * point['attacks']['fgsm']['accuracy']:.2f}")
        for point in curve["points"]
    ]
    assert drawn == list(zip([0.05, 0.1, 0.2], figures, strict=True))
    low, high = (100 * end for end in found[0]["outcomes"][1]["interval"])
    assert lines[1].endswith(f"{figures[0]} ({low:.1f} – {high:.1f})")
    assert all(figure in line for figure, line in zip(figures, lines[1:], strict=True))
    kept = json.loads((run / "results.json").read_text())["evaluations"]
    assert {0.05, 0.1, 0.2} <= {e["eps"] for e in kept}
    test = mrboost.data.load("digits").test
    (last,) = (e for e in kept if e["eps"] == 0.2)
    assert torch.equal(test.x[last["points"]], draw(test, 30).x)
    assert not (run / "checkpoint" / "evaluation").exists()
    assert "one of --weights and --eps" in error_of(
        capsys, *command, "--examples", tmp_path / "x.npz"
    )
    assert "'a' is not a number" in error_of(capsys, *command[:-4], "--eps", "0.1,a")


def test_boosted_runs_are_evaluated_stage_by_stage(
    pictures: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "run"
    quick = ["--epochs", "1", "--device", "cpu", "--quiet", "--out", str(folder)]
    assert main(["train", "mrboost", "--rounds", "2", *pictures, *quick]) == 0
    staged = json_of(capsys, "evaluate", folder, "--staged", "--attack", "fgsm", "--quiet")
    assert [e["members"] for e in staged["evaluations"]] == [1, 2]
    first = json_of(capsys, "evaluate", folder, "--rounds", "1", "--attack", "fgsm", "--quiet")
    assert (
        first["evaluations"][0]["outcomes"][1]["correct"]
        == staged["evaluations"][0]["outcomes"][1]["correct"]
    )
    assert main(["reweight", str(folder), "--device", "cpu"]) == 0
    told = capsys.readouterr().err
    assert all(f"attack {i} of 3 is done" in told for i in (1, 2, 3)), (
        "it takes a while, and says how far it is"
    )
    learned = json_of(capsys, "reweight", folder, "--quiet")["weights"]
    assert sum(learned) == pytest.approx(1)
    begun = []
    with monkeypatch.context() as patched:
        patched.setattr(
            "mrboost.runs.evaluate_run.learn_weights",
            lambda one, *_, **__: begun.append(one.weights.tolist()) or model,
        )
        model = mrboost.load(folder)
        json_of(capsys, "reweight", folder)
    assert begun == [[0.5, 0.5]], "what was learned before does not count"
    assert mrboost.load(folder).weights.tolist() == pytest.approx(learned)
    assert mrboost.load(folder, "last").weights.tolist() == [0.5, 0.5]
    assert not SideBySide.of([Run.open(folder)]).rows, (
        "figures of equal weights are of another classifier"
    )
    resumed = mrboost.boost(
        "mrboost",
        pictures[1],
        model="cnn-digits",
        rounds=2,
        epochs=1,
        out=folder,
        resume=True,
        device="cpu",
    )
    assert resumed.weights.tolist() == pytest.approx(learned)
    json_of(capsys, "evaluate", folder, "--attack", "cw", "--quiet")
    kept = json.loads((folder / "results.json").read_text())["evaluations"]
    of_both = [[o["attack"] for o in e["outcomes"]] for e in kept if e["members"] == 2]
    assert of_both == [["clean", "cw"]], (
        "the figures of the equal weights must not stand beside those of the learned"
    )
    assert "unknown objective 'mean'" in error_of(capsys, "reweight", folder, "--objective", "mean")
    assert main(["report", str(folder), "--quiet"]) == 0
    curve = json.loads((folder / "results.json").read_text())["curve"]["of"]
    (folder / "members" / "weights.json").unlink()
    assert main(["report", str(folder), "--quiet"]) == 0
    assert json.loads((folder / "results.json").read_text())["curve"]["of"] != curve, (
        "the curve is of other weights"
    )
    (folder / "members" / "weights.json").write_text('{"of": "best", "weights": ["a", "b"]}')
    assert "does not hold numbers" in error_of(capsys, "evaluate", folder)
    assert "Round by round" in (folder / "report.html").read_text()


def test_a_single_model_has_nothing_to_weigh(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is nothing to weigh" in error_of(capsys, "reweight", run)


def test_mistakes_in_evaluate(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(run)
    for arguments, message in (
        (["--attack", "pdg-20"], "unknown attack 'pdg-20': did you mean pgd-20"),
        (["--eps", "2"], "eps must be in (0, 1]"),
        (["--n", "0"], "n must be 1 to 355"),
        (["--rounds", "2"], "rounds must be 1 to 1"),
        (["--n", "1000"], "n must be 1 to 355"),
        (["--eps", "-1"], "eps must be positive and finite, got -1.0"),
        (["--batch-size", "-1"], "batch_size must be at least 1, and whole, got -1"),
        (["--norm", "L2"], "give --eps for norm 'L2'"),
        (["--norm", "L1"], "unknown norm 'L1'"),
        (["--weights", "best,worst", "--attack", "fgsm"], "'best' or 'last', got 'worst'"),
        (["--weights", "worst"], "'best' or 'last', got 'worst'"),
        (["--device", "cuda:7"], "device 'cuda:7'"),
        (["--staged", "--rounds", "1"], "give one of them"),
    ):
        assert message in error_of(capsys, "evaluate", run, *arguments)
    assert snapshot(run) == before
    found = json_of(
        capsys, "evaluate", run, "--attack", "fgsm, pgd-2", "--weights", "best,best", "--n", "10"
    )
    assert [[o["attack"] for o in e["outcomes"]] for e in found["evaluations"]] == [
        ["clean", "fgsm", "pgd-2"]
    ]
    (run / "members" / "01.safetensors").unlink()
    assert "no finished round 1" in error_of(capsys, "evaluate", run, "--staged")


def test_an_interrupted_evaluation_outlives_others(
    run: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in its second attack, then another evaluation, then on: nothing that was
    finished is done again."""
    attack, done = PGD.__call__, []

    def counted(self, *images: object, **more: object) -> torch.Tensor:
        done.append(self)
        if len(done) == 2:
            raise KeyboardInterrupt
        return attack(self, *images, **more)

    monkeypatch.setattr(PGD, "__call__", counted)
    long = ["evaluate", str(run), "--attack", "pgd-3,cw", "--n", "30", "--no-check"]
    assert main(long) == 130
    error = capsys.readouterr().err
    assert "--resume goes on where it was saved last" in error
    assert "epoch" not in error
    assert (
        main(["evaluate", str(run), "--attack", "fgsm", "--n", "10", "--no-check", "--quiet"]) == 0
    )
    (place,) = (run / "checkpoint" / "evaluation").iterdir()
    assert len(done) == 3
    # The same
    assert main([*long, "--resume", "--eps", "0.1", "--norm", "Linf", "--attack", "pgd-3, cw"]) == 0
    assert len(done) == 4
    assert f"goes on with what is saved in {place}\n" in capsys.readouterr().err
    assert not place.parent.exists()
    assert main([*long, "--resume"]) == 0
    assert "nothing is saved of this evaluation" in capsys.readouterr().err
    assert main([*long, "--resume", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_an_attack_that_fails_leaves_the_figures_of_the_others(
    run: Path, capsys, monkeypatch
) -> None:
    attacks = {
        "pgd-3": PGD(0.1, steps=3),
        "mine": as_attack(lambda model, x, y: x * torch.nan),
        "fgsm": FGSM(0.1),
    }
    monkeypatch.setattr(mrboost.runs.evaluate_run, "resolve_attacks", lambda *_: attacks)
    command = ["evaluate", str(run), "--n", "20", "--quiet", "--no-check"]
    assert main(command) == 2
    out, error = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()[2:]] == [
        "clean",
        "pgd-3",
        "fgsm",
        "failed:",
    ]
    problem = "mine: function made NaN of image 0: the attack is at fault; all else was measured"
    assert error == f"mrboost: error: {problem}\n"
    kept = json.loads((run / "results.json").read_text())["evaluations"][-1]["outcomes"]
    assert [outcome["attack"] for outcome in kept] == ["clean", "pgd-3", "fgsm"]
    assert main([*command, "--json"]) == 2
    assert (
        json.loads(capsys.readouterr().out)["evaluations"][0]["outcomes"][1]["correct"]
        == kept[1]["correct"]
    )


@pytest.mark.usefixtures("quick_autoattack")
def test_an_attack_that_fails_now_and_then_counts_once_it_succeeded(
    run: Path, capsys, monkeypatch
) -> None:
    def fail(attack, *_: object) -> None:
        raise NanLogitsError(1, attack.name)

    def kept(*, fails: bool) -> tuple[list[str], list[str], bool]:
        with monkeypatch.context() as patch:
            if fails:
                patch.setattr(Square, "begin", fail)
            assert main(command) == (2 if fails else 0)
        found = json.loads((run / "results.json").read_text())["evaluations"][-1]
        names = sorted(outcome["attack"] for outcome in found["outcomes"])
        return names, found["failed"], found["worst"] is not None

    command = [
        "evaluate",
        str(run),
        "--attack",
        "fgsm,autoattack",
        "--n",
        "7",
        "--quiet",
        "--no-check",
    ]
    whole = ["autoattack", "clean", "fgsm"]
    assert kept(fails=True) == (["clean", "fgsm"], ["autoattack"], False)
    assert "7 images: autoattack failed, so there is no worst case" in text_table([run])
    assert kept(fails=False) == (whole, [], True)
    assert kept(fails=True) == (whole, [], True)
    assert "failed" not in text_table([run])


def test_a_classifier_that_gives_no_numbers_costs_the_others_nothing(run: Path, capsys) -> None:
    path = run / "members" / "01.last.safetensors"
    write_tensors(
        path,
        {k: v * torch.nan for k, v in read_tensors(path)[0].items() if v.is_floating_point()},
        {},
    )
    capsys.readouterr()
    command = [
        "evaluate",
        str(run),
        "--attack",
        "fgsm",
        "--n",
        "12",
        "--weights",
        "last,best",
        "--no-check",
        "--quiet",
    ]
    assert main([*command, "--json"]) == 2
    out, error = capsys.readouterr()
    last, best = json.loads(out)["evaluations"]
    assert (last["outcomes"], last["failed"]) == ([], ["clean"])
    assert [outcome["attack"] for outcome in best["outcomes"]] == ["clean", "fgsm"]
    assert error.splitlines()[-1].startswith(
        "mrboost: error: last weights, members: 1, eps = 0.1: the model's logits for image 0 "
        "are NaN"
    )
    kept = json.loads((run / "results.json").read_text())["evaluations"]
    assert not any(evaluation["weights"] == "last" and evaluation["n"] == 12 for evaluation in kept)


def test_figures_of_other_images_are_kept_apart(run: Path, digits) -> None:
    """A test set may be mended, or found elsewhere; its labels may well be the same."""
    others = Split(digits.test.x.flip(3), digits.test.y)
    mended = Dataset("digits", digits.train, others, digits.classes, digits.defaults)
    for attack, dataset in (("fgsm", digits), ("pgd-3", mended), ("pgd-2", digits)):
        evaluate_run(run, [attack], Request(n=40), EvaluationOptions(check=False), dataset=dataset)
    kept = json.loads((run / "results.json").read_text())["evaluations"][-2:]
    assert sorted([o["attack"] for o in e["outcomes"]] for e in kept) == [
        ["clean", "pgd-3"],
        ["fgsm", "clean", "pgd-2"],
    ]
    for e in kept:
        least = [min(points) for points in zip(*(o["correct"] for o in e["outcomes"]), strict=True)]
        assert e["worst"]["correct"] == least


class Rounded(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 15).round() / 15 + 0 * x


def test_doubts_survive_later_commands(
    run: Path, undefended, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model without gradients: one command sees that, a second one that square
    contradicts the first's attack."""
    masked = torch.nn.Sequential(Rounded(), undefended)
    monkeypatch.setattr(
        mrboost.runs.evaluate_run, "load_model", lambda *_: mrboost.Ensemble([masked])
    )

    def evaluate(check: bool, attack: object) -> list[set[str]]:
        """The checks that the result doubts, and those of the file."""
        found = evaluate_run(
            run,
            lambda _: {attack.name: attack},
            Request(n=40, eps=0.2),
            EvaluationOptions(check=check),
            device="cpu",
        )
        (kept,) = Run.open(run).results["evaluations"]
        return [
            {doubt.check for doubt in found.doubts},
            {doubt["check"] for doubt in kept["doubts"]},
        ]

    assert evaluate(False, PGD(0.2, steps=4)) == [set(), set()]
    seen, kept = evaluate(True, PGD(0.2, steps=5))
    assert seen == kept >= {"zero-gradient"}
    assert "black-box" not in kept
    assert evaluate(False, Square(0.2, steps=200)) == [set(), kept | {"black-box"}]
    assert evaluate(True, FGSM(0.2)) == [kept | {"black-box"}] * 2
    assert [o["attack"] for o in Run.open(run).results["evaluations"][0]["outcomes"]] == [
        "pgd-4",
        "pgd-5",
        "square",
        "clean",
        "fgsm",
    ]


def test_an_evaluation_that_cannot_be_kept_is_still_shown(
    run: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: object, results: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mrboost.runs.Run, "save_results", full)
    assert main(["evaluate", str(run), "--attack", "fgsm", "--n", "20", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert "fgsm" in out
    assert "not kept" in err
    assert "No space left" in err


def test_runs_on_tensors_say_how_to_evaluate_them(
    tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mrboost.boost("at", tiny, epochs=1, out=tmp_path / "run", device="cpu")
    assert "mrboost.evaluate(mrboost.load(run), x, y)" in error_of(
        capsys, "evaluate", tmp_path / "run"
    )


def test_a_report_of_a_run_that_one_may_only_read(
    run: Path, capsys, monkeypatch, tmp_path: Path
) -> None:
    """The curve by any attack; it is kept where that can be done."""
    command = [
        "report",
        str(run),
        "--n",
        "20",
        "--quiet",
        "--out",
        str(tmp_path / "page.html"),
        "--attack",
    ]
    assert "unknown attack 'adgp-ce': did you mean apgd-ce" in error_of(capsys, *command, "adgp-ce")
    assert main([*command, "apgd-ce"]) == 0
    assert "best weights, apgd-ce." in (tmp_path / "page.html").read_text()
    curve = json.loads((run / "results.json").read_text())["curve"]
    split = mrboost.runs.evaluate_run.draw(mrboost.data.load("digits").test, 20)
    radii = [scale * 0.1 for scale in mrboost.report.report.CURVE_RADII]
    wanted = mrboost.robustness_curve(mrboost.load(run), split, None, radii, attack="apgd-ce")
    assert [point[1] for point in curve["points"]] == [point.accuracy for point in wanted]
    assert curve["attack"] == "apgd-ce"

    def read_only(self: object, change: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(mrboost.runs.Run, "save_results", read_only)
    assert main([*command, "fgsm"]) == 0
    assert "best weights, fgsm." in (tmp_path / "page.html").read_text()
