"""What the reports say, and that they can be read on any screen, in the dark, and by ear."""

from __future__ import annotations

import re
import runpy
from datetime import date
from pathlib import Path

import pytest

import mrboost
from mrboost.evaluation import EvaluationOptions
from mrboost.plots import figures
from mrboost.report import write_report
from mrboost.runs import Run
from mrboost.runs.evaluate_run import Request, evaluate_run

ROOT = Path(__file__).parents[2]
LONG = re.compile(r"\d\.\d{7,}")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, pictures: list[str]) -> dict[str, Path]:
    """A run of two epochs, a boosted one, and the networks of both, joined; but for the boosted
    one evaluated."""
    folder = tmp_path_factory.mktemp("runs")
    found = {name: folder / name for name in ("at", "boosted", "joined")}
    options = {"eps": 0.03137254901960785, "epochs": 2, "model": "cnn-digits", "device": "cpu"}
    mrboost.boost("at-mce", pictures[1], out=found["at"], seed=1, **options)
    mrboost.boost("mrboost", pictures[1], out=found["boosted"], rounds=2, **options)
    mrboost.join([found["at"], found["boosted"]], found["joined"])
    for name in ("at", "joined"):
        evaluate_run(found[name], ["fgsm", "pgd-3"], Request(n=10))
    return found


@pytest.fixture(scope="module")
def page(runs: dict[str, Path]) -> str:
    return write_report([*runs.values()], runs["at"] / "report.html", n=10).read_text("utf-8")


@pytest.fixture(scope="module")
def evaluation(model, digits) -> mrboost.Evaluation:
    return mrboost.evaluate(model, digits.test[:40], attack=["fgsm", "pgd-3"], eps=0.1)


@pytest.fixture(scope="module")
def own_page(evaluation: mrboost.Evaluation, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("own") / "page.html"
    evaluation.to_html(path, "my network")
    return path.read_text("utf-8")


@pytest.fixture(params=["page", "own_page"])
def text(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


def test_a_page_has_what_readers_of_any_kind_need(text: str) -> None:
    assert f"<time datetime={date.today()}>" in text
    assert "<meta name=viewport" in text
    assert "@media (prefers-color-scheme:dark)" in text
    assert "@media print" in text
    images = re.findall(r"<img[^>]*>", text)
    assert images
    for image in images:
        alt = re.search(r"alt='([^']+)'", image)
        assert alt, image[:200]
        assert alt[1] not in ("plot", "test image")
    without_images = re.sub(r"base64,[^']*", "", text)
    assert not LONG.search(without_images)
    assert "±" not in without_images


def test_titles_say_what_the_page_is_of(page: str, own_page: str) -> None:
    assert "<title>Robustness of at-mce, mrboost, joined on folder:" in page
    assert "<title>Robustness of my network</title>" in own_page


def test_the_first_screen_has_the_worst_case_and_the_attacks(page: str, runs) -> None:
    first = page.split("Attack by attack")[0]
    accuracy, (low, high) = evaluate_run(runs["at"], ["fgsm", "pgd-3"], Request(n=10)).worst
    assert f"<b>{100 * accuracy:.1f} %</b>\n<small>{100 * low:.1f}–{100 * high:.1f} %" in first
    assert "10 images, Linf 8/255: worst case over fgsm, pgd-3." in first
    assert f"mrboost evaluate {runs['at']} --attack autoattack</code>" in first
    assert f"mrboost evaluate {runs['boosted']}</code>" in first, "it is not evaluated"
    assert "2 networks" not in first
    assert "3 networks that were trained apart (at-mce, mrboost)" in first


def test_what_was_not_looked_for_is_no_comfort(run: Path, tmp_path: Path) -> None:
    evaluate_run(run, ["fgsm"], Request(n=10), EvaluationOptions(check=False))
    text = write_report([run], tmp_path / "page.html", n=10).read_text("utf-8")
    assert "at-mce: no reasons to doubt its figures were looked for" in text
    assert "No reason to doubt these figures was seen" not in text


def test_doubts_stand_on_the_first_screen(evaluation: mrboost.Evaluation, digits, tmp_path) -> None:
    doubted = mrboost.evaluate(
        lambda x: x.flatten(1)[:, :10].round() * 50, digits.test[:40], attack="fgsm", eps=0.1
    )
    assert doubted.doubts
    write_report({"sound": evaluation, "masked": doubted}, tmp_path / "page.html")
    first = (tmp_path / "page.html").read_text("utf-8").split("Attack by attack")[0]
    assert "Reasons to doubt these figures" in first
    assert "the gradient of the margin is exactly zero" in first


def test_autoattack_is_missed_only_where_it_did_not_run(
    model, digits, tmp_path: Path, small_autoattack
) -> None:
    page = tmp_path / "page.html"
    for attacks, missing in (({"aa": small_autoattack}, False), ({}, False), ("fgsm", True)):
        mrboost.evaluate(model, digits.test[:8], attack=attacks, eps=0.1, check=False).to_html(page)
        assert ("AutoAttack, which may lower it" in page.read_text("utf-8")) == missing


def test_joined_networks_are_drawn_side_by_side(runs, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = {}

    def curves(metrics: figures.Metrics, *_: object, **__: object) -> str:
        drawn.update(metrics)
        return ""

    monkeypatch.setattr(figures, "training_curves", curves)
    write_report([*runs.values()], runs["at"] / "report.html", n=10)
    epochs = {
        label: [[(row["round"], row["epoch"]) for row in rows] for rows in trainings]
        for label, trainings in drawn.items()
    }
    assert epochs["mrboost"] == [[(1, 1), (1, 2), (2, 1), (2, 2)]], "one after the other"
    assert epochs["joined"] == [[(1, 1), (1, 2)], [(2, 1), (2, 2), (3, 1), (3, 2)]]
    assert [part["rounds"] for part in Run.open(runs["joined"]).config["joined"]] == [[1], [2]]


def test_looking_without_a_browser_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "docs" / "look.py"), run_name="__main__")
    assert capsys.readouterr().out.startswith("no browser found (chromium, ")
    assert not list(tmp_path.iterdir())
