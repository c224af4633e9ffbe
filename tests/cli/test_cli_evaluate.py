"""evaluate, reweight and report, as a user types them: what they print, what they
keep, what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import mrboost
from commands import done, error_of, json_of, results_of, snapshot
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

    def stages(eps: float, norm: str) -> tuple:
        apgd, fab = (kind(eps, norm, targets=2, steps=5) for kind in (APGD, FAB))
        return APGD(eps, norm, steps=5), apgd, fab, Square(eps, norm, steps=30)

    monkeypatch.setitem(autoattack.VERSIONS, "standard", stages)


def test_train_evaluate_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, plots = tmp_path / "run", tmp_path / "plots"
    options = ["--data", "digits", "--epochs", "1", "--eps", "1/10", "--device", "cpu", "--quiet"]
    summary = json_of(capsys, "train", "at", *options, "--out", folder)
    assert summary["rounds"][0]["best"]["epoch"] == 1
    config = json.loads((folder / "config.json").read_text())
    assert (config["recipe"]["name"], config["eps"], config["model"]) == ("at", 0.1, "cnn-digits")

    asked = ["--attack", "fgsm,pgd-3", "--n", "20", "--weights", "best,last"]
    best, last = json_of(capsys, "evaluate", folder, *asked)["evaluations"]
    assert [o["attack"] for o in best["outcomes"]] == ["clean", "fgsm", "pgd-3"]
    assert (best["weights"], last["weights"], last["n"], last["members"]) == ("best", "last", 20, 1)
    done("evaluate", folder, "--attack", "cw", "--n", "20", "--quiet")
    assert "cw" in capsys.readouterr().out
    kept = results_of(folder)["evaluations"]
    assert [(e["weights"], [o["attack"] for o in e["outcomes"]]) for e in kept] == [
        ("last", ["clean", "fgsm", "pgd-3"]),
        ("best", ["fgsm", "pgd-3", "clean", "cw"]),
    ]

    done("report", folder, "--n", "20", "--plots", plots, "--quiet")
    assert str(folder / "report.html") in capsys.readouterr().out
    page = (folder / "report.html").read_text()
    assert page.count("data:image/svg+xml;base64") == 4
    assert page.count("data:image/png;base64") >= 3
    assert "Class by class" in page
    names = ["loss.svg", "margins.svg", "robustness.svg", "training.svg"]
    assert sorted(path.name for path in plots.iterdir()) == names
    assert "http" not in page.replace("http://www.w3.org", ""), "the page must load nothing"


def test_a_report_of_several_runs(run: Path, tmp_path: Path, capsys) -> None:
    quick = ["train", "at", "--epochs", "1", "--device", "cpu", "--quiet", "--out"]
    other, of_l2, plots = (tmp_path / name for name in ("other", "l2", "plots"))
    done(*quick, other, "--eps", "0.2", "--awp", "0.02")
    done(*quick, of_l2, "--eps", "0.5", "--norm", "L2")
    page = ["--out", tmp_path / "page.html", "--n", "20", "--quiet"]
    assert "the runs are of different norms (Linf, L2): report each alone" in error_of(
        capsys, "report", run, of_l2, *page
    )
    done("report", run, other, *page, "--plots", plots)
    assert (plots / "minutes.svg").exists()
    text = (tmp_path / "page.html").read_text()
    for words in (
        "Linf perturbations of eps = 0.1, 0.2.",
        "<tr><td>awp</td><td>0</td><td>0.02</td></tr>",
        "<tr><td>eps</td><td>0.1</td><td>0.2</td></tr>",
        "Not evaluated yet. For the table of test accuracies run",
        f"<br><code>mrboost evaluate {other}",
    ):
        assert words in text
    assert "Margins under attack, at the training eps" in (plots / "margins.svg").read_text()
    assert (plots / "robustness.svg").read_text().count("training eps") == 2


@pytest.mark.usefixtures("quick_autoattack")
def test_autoattack_adaptive_examples_and_doubts(run: Path, capsys, tmp_path: Path) -> None:
    """The attacks that fit, on few images; what they leave in the folder, the table, the page."""
    examples, page = tmp_path / "examples.npz", tmp_path / "page.html"
    asked = ["--attack", "fgsm", "--adaptive", "--n", "10", "--eps", "0.2", "--examples", examples]
    found = json_of(capsys, "evaluate", run, *asked)["evaluations"][0]["outcomes"]
    outcomes = {outcome["attack"]: outcome for outcome in found}
    assert list(outcomes) == ["clean", "fgsm", "autoattack", "apgd-mce"]
    stages = [stage["attack"] for stage in outcomes["autoattack"]["stages"]]
    assert stages == ["apgd-ce", "apgd-t", "fab-t", "square"]
    assert sorted(np.load(examples)) == ["apgd-mce", "autoattack", "clean", "fgsm", "y"]
    assert not (run / "checkpoint" / "evaluation").exists()
    results = results_of(run)
    doubt = {"check": "made-up", "message": "a <b>made-up</b> doubt"}
    results["evaluations"][-1]["doubts"] = [doubt]
    (run / "results.json").write_text(json.dumps(results))
    done("report", run, "--n", "20", "--quiet", "--out", page)
    assert "worst case" in capsys.readouterr().out
    assert "Reasons to doubt these figures" in page.read_text()
    assert "a &lt;b&gt;made-up&lt;/b&gt; doubt" in page.read_text()
    both = ["--weights", "best,last", "--examples", examples]
    assert "for one classifier" in error_of(capsys, "evaluate", run, *both)


def test_autoattack_is_proposed_until_it_was_run(run: Path, capsys, quick_autoattack) -> None:
    proposal = f"next: mrboost evaluate {run} --attack autoattack"
    for attack, proposed in (("fgsm", True), ("autoattack", False), ("fgsm", False)):
        done("evaluate", run, "--attack", attack, "--n", "10", "--no-check")
        said = " ".join(capsys.readouterr().out.replace("\\\n", " ").split())
        assert (proposal in said) == proposed
        assert f"next: mrboost report {run}" in said


def test_several_radii_are_a_curve(run: Path, capsys, tmp_path: Path) -> None:
    command = ["evaluate", run, "--attack", "fgsm", "--n", "30", "--no-check", "--quiet", "--eps"]
    done(*command, "0.2,1/20,0.1")
    lines = capsys.readouterr().out.splitlines()[-4:]
    assert lines[0].split() == ["eps", "clean", "fgsm"]
    document = json_of(capsys, *command, "0.2,1/20,0.1")
    found, (curve,) = document["evaluations"], document["curves"]
    assert [evaluation["eps"] for evaluation in found] == [0.05, 0.1, 0.2]
    for line, evaluation, point in zip(lines[1:], found, curve["points"], strict=True):
        fgsm = evaluation["outcomes"][1]
        low, high = (100 * end for end in fgsm["interval"])
        assert line.split()[0] == f"{evaluation['eps']:g}"
        assert line.endswith(f"{100 * fgsm['accuracy']:.2f} ({low:.1f} – {high:.1f})")
        assert point["eps"] == evaluation["eps"]
        assert point["attacks"]["fgsm"]["accuracy"] == fgsm["accuracy"]
    test = mrboost.data.load("digits").test
    (last,) = (e for e in results_of(run)["evaluations"] if e["eps"] == 0.2)
    assert torch.equal(test.x[last["points"]], draw(test, 30).x)
    assert not (run / "checkpoint" / "evaluation").exists()
    refused = error_of(capsys, *command, "0.1,0.2", "--examples", tmp_path / "x.npz")
    assert "one of --weights and --eps" in refused
    assert "'a' is not a number" in error_of(capsys, *command, "0.1,a")


@pytest.fixture
def boosted(pictures: list[str], tmp_path: Path) -> Path:
    folder = tmp_path / "boosted"
    quick = ["--epochs", "1", "--device", "cpu", "--quiet", "--out", folder]
    done("train", "mrboost", "--rounds", "2", *pictures, *quick)
    return folder


def test_boosted_runs_are_evaluated_stage_by_stage(boosted: Path, capsys) -> None:
    fgsm = ["evaluate", boosted, "--attack", "fgsm", "--quiet"]
    staged = json_of(capsys, *fgsm, "--staged")["evaluations"]
    assert [e["members"] for e in staged] == [1, 2]
    (first,) = json_of(capsys, *fgsm, "--rounds", "1")["evaluations"]
    assert first["outcomes"][1]["correct"] == staged[0]["outcomes"][1]["correct"]


def test_learned_weights_replace_the_equal_ones(
    boosted: Path, pictures: list[str], capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    json_of(capsys, "evaluate", boosted, "--attack", "fgsm", "--quiet")
    done("reweight", boosted, "--device", "cpu")
    told = capsys.readouterr().err
    assert all(f"attack {i} of 3 is done" in told for i in (1, 2, 3))
    learned = json_of(capsys, "reweight", boosted, "--quiet")["weights"]
    assert sum(learned) == pytest.approx(1)
    begun = []
    with monkeypatch.context() as patched:
        patched.setattr(
            "mrboost.runs.reweight.learn_weights",
            lambda one, *_, **__: begun.append(one.weights.tolist()) or model,
        )
        model = mrboost.load(boosted)
        json_of(capsys, "reweight", boosted)
    assert begun == [[0.5, 0.5]], "what was learned before does not count"
    assert mrboost.load(boosted).weights.tolist() == pytest.approx(learned)
    assert mrboost.load(boosted, "last").weights.tolist() == [0.5, 0.5]
    assert not SideBySide.of([Run.open(boosted)]).rows, "figures of equal weights are of another"
    how = {"model": "cnn-digits", "rounds": 2, "epochs": 1, "device": "cpu"}
    resumed = mrboost.boost("mrboost", pictures[1], out=boosted, resume=True, **how)
    assert resumed.weights.tolist() == pytest.approx(learned)
    json_of(capsys, "evaluate", boosted, "--attack", "cw", "--quiet")
    of_both = [e for e in results_of(boosted)["evaluations"] if e["members"] == 2]
    assert [[o["attack"] for o in e["outcomes"]] for e in of_both] == [["clean", "cw"]]
    unknown = error_of(capsys, "reweight", boosted, "--objective", "mean")
    assert "unknown objective 'mean'" in unknown
    done("report", boosted, "--quiet")
    assert "Round by round" in (boosted / "report.html").read_text()
    curve = results_of(boosted)["curve"]["of"]
    (boosted / "members" / "weights.json").unlink()
    done("report", boosted, "--quiet")
    assert results_of(boosted)["curve"]["of"] != curve, "the curve is of other weights"
    (boosted / "members" / "weights.json").write_text('{"of": "best", "weights": ["a", "b"]}')
    assert "is not a run's weights.json" in error_of(capsys, "evaluate", boosted)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--attack pdg-20", "unknown attack 'pdg-20': did you mean pgd-20"),
        ("--eps 2", "eps must be in (0, 1]"),
        ("--n 0", "n must be 1 to 355"),
        ("--n 1000", "n must be 1 to 355"),
        ("--rounds 2", "rounds must be 1 to 1"),
        ("--rounds 0", "rounds must be 1 to 1"),
        ("--eps -1", "eps must be positive and finite, got -1.0"),
        ("--batch-size -1", "batch_size must be at least 1, and whole, got -1"),
        ("--norm L2", "give --eps for norm 'L2'"),
        ("--norm L3", "unknown norm 'L3'"),
        ("--weights best,worst --attack fgsm", "'best' or 'last', got 'worst'"),
        ("--device cuda:7", "device 'cuda:7'"),
        ("--staged --rounds 1", "give one of them"),
    ],
)
def test_mistakes_in_evaluate(arguments: str, message: str, run: Path, capsys) -> None:
    before = snapshot(run)
    assert message in error_of(capsys, "evaluate", run, *arguments.split())
    assert snapshot(run) == before


def test_what_is_said_twice_is_measured_once(run: Path, capsys) -> None:
    asked = ["--attack", "fgsm, pgd-2", "--weights", "best,best", "--n", "10"]
    (found,) = json_of(capsys, "evaluate", run, *asked)["evaluations"]
    assert [outcome["attack"] for outcome in found["outcomes"]] == ["clean", "fgsm", "pgd-2"]
    assert "there is nothing to weigh" in error_of(capsys, "reweight", run)
    (run / "members" / "01.safetensors").unlink()
    assert "no finished round 1" in error_of(capsys, "evaluate", run, "--staged")


def test_an_interrupted_evaluation_outlives_others(
    run: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in its second attack, then another evaluation, then on: nothing that was
    finished is done again."""
    attack, done_by_now = PGD.__call__, []

    def counted(self, *images: object, **more: object) -> torch.Tensor:
        done_by_now.append(self)
        if len(done_by_now) == 2:
            raise KeyboardInterrupt
        return attack(self, *images, **more)

    monkeypatch.setattr(PGD, "__call__", counted)
    long = ["evaluate", str(run), "--attack", "pgd-3,cw", "--n", "30", "--no-check"]
    assert main(long) == 130
    error = capsys.readouterr().err
    assert "--resume goes on where it was saved last" in error
    assert "epoch" not in error
    done("evaluate", run, "--attack", "fgsm", "--n", "10", "--no-check", "--quiet")
    (place,) = (run / "checkpoint" / "evaluation").iterdir()
    assert len(done_by_now) == 3
    # The same
    done(*long, "--resume", "--eps", "0.1", "--norm", "Linf", "--attack", "pgd-3, cw")
    assert len(done_by_now) == 4
    assert f"goes on with what is saved in {place}\n" in capsys.readouterr().err
    assert not place.parent.exists()
    done(*long, "--resume")
    assert "nothing is saved of this evaluation" in capsys.readouterr().err
    done(*long, "--resume", "--quiet")
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
    shown = [line.split()[0] for line in out.partition("seconds\n")[2].splitlines()]
    assert shown == ["clean", "pgd-3", "fgsm", "failed:"]
    problem = "mine: function made NaN of image 0: the attack is at fault; all else was measured"
    assert error == f"mrboost: error: best weights, eps = 0.1: {problem}\n"
    kept = results_of(run)["evaluations"][-1]["outcomes"]
    assert [outcome["attack"] for outcome in kept] == ["clean", "pgd-3", "fgsm"]
    assert main([*command, "--json"]) == 2
    (found,) = json.loads(capsys.readouterr().out)["evaluations"]
    assert found["outcomes"][1]["correct"] == kept[1]["correct"]


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
        found = results_of(run)["evaluations"][-1]
        names = sorted(outcome["attack"] for outcome in found["outcomes"])
        return names, found["failed"], found["worst"] is not None

    command = ["evaluate", str(run), "--attack", "fgsm,autoattack", "--n", "7", "--quiet"]
    command.append("--no-check")
    whole = ["autoattack", "clean", "fgsm"]
    assert kept(fails=True) == (["clean", "fgsm"], ["autoattack"], False)
    said = " ".join(text_table([run]).split())
    assert "7 images: autoattack failed, so there is no worst case" in said
    assert kept(fails=False) == (whole, [], True)
    assert kept(fails=True) == (whole, [], True)
    assert "failed" not in text_table([run])


def test_a_classifier_that_gives_no_numbers_costs_the_others_nothing(run: Path, capsys) -> None:
    path = run / "members" / "01.last.safetensors"
    tensors, _ = read_tensors(path)
    write_tensors(path, {k: v * torch.nan for k, v in tensors.items() if v.is_floating_point()}, {})
    asked = ["--attack", "fgsm", "--n", "12", "--weights", "last,best", "--no-check", "--quiet"]
    assert main(["evaluate", str(run), *asked, "--json"]) == 2
    out, error = capsys.readouterr()
    last, best = json.loads(out)["evaluations"]
    assert (last["outcomes"], last["failed"]) == ([], ["clean"])
    assert [outcome["attack"] for outcome in best["outcomes"]] == ["clean", "fgsm"]
    said = "last weights, eps = 0.1: the model's logits for image 0 are NaN"
    assert error.splitlines()[-1].startswith(f"mrboost: error: {said}")
    kept = results_of(run)["evaluations"]
    assert not any(evaluation["weights"] == "last" and evaluation["n"] == 12 for evaluation in kept)


def test_figures_of_other_images_are_kept_apart(run: Path, digits) -> None:
    """A test set may be mended, or found elsewhere; its labels may well be the same."""
    others = Split(digits.test.x.flip(3), digits.test.y)
    mended = Dataset("digits", digits.train, others, digits.classes, digits.defaults)
    for attack, dataset in (("fgsm", digits), ("pgd-3", mended), ("pgd-2", digits)):
        evaluate_run(run, [attack], Request(n=40), EvaluationOptions(check=False), dataset=dataset)
    kept = results_of(run)["evaluations"][-2:]
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
    """A model without gradients: one command sees that, a second one that square contradicts the
    first's attack."""
    masked = mrboost.Ensemble([torch.nn.Sequential(Rounded(), undefended)])
    monkeypatch.setattr(mrboost.runs.evaluate_run, "load_model", lambda *_: masked)

    def evaluate(check: bool, attack: object) -> tuple[set[str], set[str]]:
        """The checks that the result doubts, and those of the file."""
        request, how = Request(n=40, eps=0.2), EvaluationOptions(check=check)
        found = evaluate_run(run, lambda _: {attack.name: attack}, request, how, device="cpu")
        (kept,) = Run.open(run).results["evaluations"]
        return {doubt.check for doubt in found.doubts}, {doubt["check"] for doubt in kept["doubts"]}

    assert evaluate(False, PGD(0.2, steps=4)) == (set(), set())
    seen, kept = evaluate(True, PGD(0.2, steps=5))
    assert seen == kept >= {"zero-gradient"}
    assert "black-box" not in kept
    assert evaluate(False, Square(0.2, steps=200)) == (set(), kept | {"black-box"})
    assert evaluate(True, FGSM(0.2)) == (kept | {"black-box"}, kept | {"black-box"})
    attacks = [o["attack"] for o in Run.open(run).results["evaluations"][0]["outcomes"]]
    assert attacks == ["pgd-4", "pgd-5", "square", "clean", "fgsm"]


def test_an_evaluation_that_cannot_be_kept_is_still_shown(
    run: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mrboost.runs.Run, "changing_results", full)
    assert main(["evaluate", str(run), "--attack", "fgsm", "--n", "20", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert "fgsm" in out
    assert "not kept" in err
    assert "No space left" in err


def test_runs_on_tensors_say_how_to_evaluate_them(tiny, tmp_path: Path, capsys) -> None:
    mrboost.boost("at", tiny, epochs=1, out=tmp_path / "run", device="cpu")
    message = error_of(capsys, "evaluate", tmp_path / "run")
    assert "mrboost.evaluate(mrboost.load(run), x, y)" in message


def test_a_report_of_a_run_that_one_may_only_read(
    run: Path, capsys, monkeypatch, tmp_path: Path
) -> None:
    """The curve by any attack; it is kept where that can be done."""
    page = tmp_path / "page.html"
    command = ["report", run, "--n", "20", "--quiet", "--out", page, "--attack"]
    assert "unknown attack 'adgp-ce': did you mean apgd-ce" in error_of(capsys, *command, "adgp-ce")
    done(*command, "pgd-3")
    assert "best weights, pgd-3." in page.read_text()
    curve = results_of(run)["curve"]
    split = mrboost.runs.evaluate_run.draw(mrboost.data.load("digits").test, 20)
    radii = [scale * 0.1 for scale in mrboost.report.report.CURVE_RADII]
    wanted = mrboost.robustness_curve(mrboost.load(run), split, None, radii, attack="pgd-3")
    assert [point[1] for point in curve["points"]] == [point.accuracy for point in wanted]
    assert curve["attack"] == "pgd-3"

    def read_only(self: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(mrboost.runs.Run, "changing_results", read_only)
    done(*command, "fgsm")
    assert "best weights, fgsm." in page.read_text()
