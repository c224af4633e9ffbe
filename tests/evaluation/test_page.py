"""What an evaluation can be written as."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import pytest

import mrboost
from mrboost.errors import InputError
from mrboost.report import write_report


@pytest.fixture(scope="module")
def evaluation(model, images) -> mrboost.Evaluation:
    x, y = (part[:64] for part in images)
    return mrboost.evaluate(model, x, y, ["fgsm", "pgd-3"], eps=0.1)


def test_rows_are_the_figures(evaluation) -> None:
    clean, fgsm, pgd, worst = evaluation.to_rows()
    assert [row["attack"] for row in (clean, fgsm, pgd)] == ["clean", "fgsm", "pgd-3"]
    assert (fgsm["accuracy"], fgsm["n"], fgsm["ball"]) == (
        evaluation["fgsm"].accuracy,
        64,
        "Linf 0.1",
    )
    assert (worst["accuracy"], (worst["low"], worst["high"])) == evaluation.worst
    assert worst["margin"] is None


def test_a_frame_needs_pandas(evaluation, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = ModuleType("pandas")
    stub.DataFrame = lambda rows: rows
    monkeypatch.setitem(sys.modules, "pandas", stub)
    assert evaluation.to_frame() == evaluation.to_rows()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"pip install pandas, or to_rows\(\)"):
        evaluation.to_frame()


def test_pages_plots_and_json(evaluation, tmp_path) -> None:
    page = tmp_path / "new" / "page.html"
    evaluation.to_html(page, label="<mine>")
    text = page.read_text()
    for words in ("Robustness of &lt;mine&gt;", "worst case", "Linf 0.1", "data:image/svg+xml"):
        assert words in text
    assert "http" not in text.replace("http://www.w3.org", ""), "the page must load nothing"
    evaluation.save(tmp_path / "found.json")
    assert json.loads((tmp_path / "found.json").read_text()) == json.loads(evaluation.to_json())
    for name, start in (("a.svg", b"<?xml"), ("a.png", b"\x89PNG"), ("a.pdf", b"%PDF")):
        evaluation.plot(tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)
    with pytest.raises(InputError, match=r"written as svg, png, pdf, got '.*a\.doc'"):
        evaluation.plot(tmp_path / "a.doc")
    write_report({"one": evaluation, "other": evaluation}, page)
    assert "Robustness of one, other" in page.read_text()
