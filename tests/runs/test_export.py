"""Exported classifiers answer as the run does, or are not there; their cards; single networks."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import mrboost
from commands import done, error_of, json_of, snapshot
from mrboost.files import read_tensors, write_tensors
from mrboost.runs import Run, export
from mrboost.runs.export import model_card

KINDS = (".onnx", ".pt2")


def answers(path: Path, images: torch.Tensor) -> torch.Tensor:
    """As the card says."""
    if path.suffix == ".pt2":
        return torch.export.load(path).module()(images).detach()
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(path)
    return torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])


@pytest.fixture(scope="module")
def weighted(tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two networks, of which the first counts three times as much; its data are no longer there."""
    folder = tmp_path_factory.mktemp("weighted") / "run"
    mrboost.boost("mrboost", tiny, rounds=2, epochs=1, steps=1, out=folder, device="cpu")
    Run.open(folder).save_weights("best", [0.75, 0.25], "by hand")
    return folder


def facts(path: Path) -> dict[str, object]:
    """What the file says of itself."""
    if path.suffix == ".pt2":
        told = dict.fromkeys(("classes", "eps", "norm", "shape", "mrboost"), "")
        torch.export.load(path, extra_files=told)
    else:
        runtime = pytest.importorskip("onnxruntime")
        told = runtime.InferenceSession(path).get_modelmeta().custom_metadata_map
    return {key: json.loads(value) for key, value in told.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_answers_as_the_run(kind: str, weighted: Path, tmp_path: Path, caplog) -> None:
    """In batches of sizes that were not tried, without a warning, and leaving nothing else; and
    it says what it is."""
    if kind == ".onnx":
        pytest.importorskip("onnxruntime")
    place = tmp_path / "new" / f"model{kind}"
    found = mrboost.export(weighted, place)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert found.images.startswith("16 images of noise (the run's are not there: the run has")
    assert {path.name for path in place.parent.iterdir()} == {place.name, f"{place.name}.md"}
    images = torch.rand(5, 1, 8, 8)
    expected = mrboost.load(weighted)(images)
    torch.testing.assert_close(answers(place, images), expected, rtol=1e-4, atol=1e-5)
    assert facts(place) == {
        "classes": ["a", "b", "c"],
        "eps": 0.05,
        "norm": "Linf",
        "shape": [1, 8, 8],
        "mrboost": mrboost.__version__,
    }


def test_weights_and_rounds_are_chosen(weighted: Path, tmp_path: Path) -> None:
    images = torch.rand(1, 1, 8, 8)
    for how in ({"which": "last"}, {"rounds": 1}):
        mrboost.export(weighted, tmp_path / "m.pt2", **how)
        expected = mrboost.load(weighted, **how)(images)
        torch.testing.assert_close(answers(tmp_path / "m.pt2", images), expected)


def test_a_file_that_answers_otherwise_is_never_there(
    trained: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    def save(program, path, facts):
        whole = export._save_pt2(program, path, facts)
        return lambda images: whole(images) + 0.01

    monkeypatch.setitem(export.FORMATS, ".pt2", save)
    (tmp_path / "m.pt2").write_text("the one before")
    before = snapshot(tmp_path)
    message = error_of(capsys, "export", trained, "--to", tmp_path / "m.pt2", "--quiet")
    assert "m.pt2 would not answer as the model does: logits differ by" in message
    assert snapshot(tmp_path) == before


def test_what_cannot_be_exported(run: Path, forgotten: None, tmp_path, monkeypatch, capsys) -> None:
    place = tmp_path / "out" / "m.pt2"
    command = ["export", run, "--quiet", "--to"]
    assert "unknown kind of file '.pth': did you mean .pt2?" in error_of(capsys, *command, "m.pth")
    pytest.importorskip("onnxruntime")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "onnxruntime", None)
        message = error_of(capsys, *command, place.with_suffix(".onnx"))
    assert "ONNX needs onnxruntime" in message
    assert "pip install 'mrboost[onnx]', or export to a .pt2" in message

    @mrboost.models.register("branching")
    def branching(shape, classes):
        class Branching(nn.Linear):
            def forward(self, x):
                answer = super().forward(x.flatten(1))
                return answer if x.sum() > 0 else -answer

        return Branching(64, classes)

    once = {"epochs": 1, "device": "cpu", "out": tmp_path / "branching", "steps": 1}
    mrboost.boost("at", "digits", model="branching", **once)
    message = error_of(capsys, "export", tmp_path / "branching", "--quiet", "--to", place)
    assert "torch.export cannot follow the model of" in message
    assert "without branches on values" in message

    config = json.loads((run / "config.json").read_text())
    config["recipe"]["combine"] = "Mixture"
    (run / "config.json").write_text(json.dumps(config))
    message = error_of(capsys, *command, place)
    assert f"drawn at random for each image: name one of them ({run}/members/01" in message
    assert not place.parent.exists()


def test_the_card_has_the_figures_of_this_classifier(run: Path, tmp_path: Path, capsys) -> None:
    quick = ["--n", "60", "--device", "cpu", "--quiet"]
    (found,) = json_of(capsys, "evaluate", run, "--attack", "fgsm,pgd-3", *quick)["evaluations"]
    done("evaluate", run, "--attack", "cw", "--weights", "last", *quick)
    place = tmp_path / "m.pt2"
    done("export", run, "--to", place, "--quiet")
    card = (tmp_path / "m.pt2.md").read_text()
    for outcome in found["outcomes"]:
        low, high = outcome["interval"]
        figures = f"{outcome['accuracy']:.2%} | {low:.1%} – {high:.1%}"
        assert f"| {outcome['attack']} | {figures} |" in card
    assert f"| **worst case** | {found['worst']['accuracy']:.2%} |" in card
    assert "On a sample of 60 test images of digits, Linf eps = 0.1:" in card
    assert "| cw |" not in card, "that is of other weights"
    for fact in ("at-mce: ", "shape (N, 1, 8, 8), grey", "0 = 0, 1 = 1", "| epochs of each round"):
        assert fact in card
    code = card.split("```python\n")[1].split("```")[0]
    namespace: dict = {}
    exec(code.replace('"m.pt2"', repr(str(place))), namespace)
    assert namespace["model"](namespace["images"]).shape == (2, 10)

    stated = card.replace("to be stated by whoever publishes this file", "CC-BY-4.0, of me")
    (tmp_path / "m.pt2.md").write_text(stated)
    done("export", run, "--to", place, "--quiet")
    assert (tmp_path / "m.pt2.md").read_text() == stated, "the user's licence stays"


def test_a_card_tells_nobody_where_images_lie(trained: Path) -> None:
    run = Run.open(trained)
    run.config["data"] = "folder:/home/somebody/pets?size=64"
    run.config["first"] = {"weights": "/home/somebody/first.pt"}
    card = model_card(run, "m.onnx", "best", 1)
    assert "folder:pets?size=64" in card
    assert "first.pt" in card
    assert "somebody" not in card


def test_one_network_by_its_file(weighted: Path, tmp_path: Path, capsys) -> None:
    file = tmp_path / "moved.safetensors"
    shutil.copy(weighted / "members" / "02.safetensors", file)
    images = torch.rand(4, 1, 8, 8)
    expected = mrboost.load(weighted)[1](images)
    assert torch.equal(mrboost.load(file)(images), expected)
    assert mrboost.load(file, trainable=True).training
    mrboost.export(file, tmp_path / "one.pt2")
    torch.testing.assert_close(answers(tmp_path / "one.pt2", images), expected)

    tensors, facts = read_tensors(file)
    write_tensors(file, {**tensors, "0.mean": tensors["0.mean"] + 1}, facts)
    with pytest.raises(mrboost.InputError, match="has changed since it was written"):
        mrboost.load(file)
    write_tensors(file, tensors, {})
    with pytest.raises(mrboost.InputError, match="does not say which network its weights are of"):
        mrboost.load(file)
    assert "nor the .safetensors of one's network" in error_of(
        capsys, "export", tmp_path / "one.pt2", "--to", "m.pt2"
    )


def test_one_network_is_evaluated_by_its_file(trained: Path, tmp_path, capsys, monkeypatch) -> None:
    """On the data and in the ball of its training, as its run is."""
    monkeypatch.chdir(tmp_path)
    quick = ["--attack", "pgd-3", "--n", "60", "--device", "cpu", "--quiet", "--no-check"]
    file = trained / "members" / "01.safetensors"
    (one,) = json_of(capsys, "evaluate", file, *quick)["evaluations"]
    direct = mrboost.runs.evaluate_run.evaluate_run(
        shutil.copytree(trained, tmp_path / "run"),
        ["pgd-3"],
        mrboost.runs.evaluate_run.Request(n=60),
        device="cpu",
    )
    assert (one["eps"], one["norm"]) == (0.1, "Linf")
    tensors, facts = read_tensors(file)
    facts["config"] |= {"eps": 5.0, "norm": "L1"}
    write_tensors(tmp_path / "other.safetensors", tensors, facts)
    (other,) = json_of(capsys, "evaluate", "other.safetensors", *quick)["evaluations"]
    assert (other["eps"], other["norm"]) == (5.0, "L1"), "not the data's usual ones"
    assert [outcome["correct"] for outcome in one["outcomes"]] == [
        list(outcome.correct) for outcome in direct.outcomes
    ]
    assert Path("evaluations/digits-run-01/results.json").exists()
    for option in ("--weights", "--normalize"):
        assert "has its own: leave it out" in error_of(capsys, "evaluate", file, option, "0,1")


def test_a_file_alone_never_has_code_imported(trained: Path, tmp_path, capsys, monkeypatch) -> None:
    tensors, facts = read_tensors(trained / "members" / "01.safetensors")
    facts["config"]["model"] = "evil.py:net"
    write_tensors(tmp_path / "a.safetensors", tensors, facts)
    (tmp_path / "evil.py").write_text("print('run')\nnet = None\n")
    monkeypatch.chdir(tmp_path)
    for command in (["evaluate"], ["export", "--to", "m.pt2"]):
        message = error_of(capsys, *command, "a.safetensors", "--quiet")
        assert "is code that was not imported: if you trust it, --import evil.py:net" in message
