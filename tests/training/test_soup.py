"""Soups: the mean of weights, statistics of their own, a run folder like any other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mrboost
from commands import done, error_of, json_of, snapshot
from mrboost.runs import Run

CPU = ["--device", "cpu", "--quiet"]


@pytest.fixture(scope="module")
def boosted(digits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("boosted") / "run"
    how = {"rounds": 2, "epochs": 3, "later_epochs": 1, "steps": 1, "validation": 100}
    mrboost.boost("mrboost", digits, out=folder, device="cpu", **how)
    run = Run.open(folder)
    # Statistics that no average of them would make good again
    for round_ in (1, 2):
        state = run.members(round_, "last")[-1].state_dict()
        for name in state:
            if name.endswith("running_mean"):
                state[name] += 50
        run.save_member(round_, state, state, run.epochs(round_))
    return folder


@pytest.mark.parametrize("weights", [[0.5, 0.5], [0.75, 0.25]])
def test_weights_are_the_mean_and_statistics_are_new(boosted, weights, tmp_path, digits) -> None:
    Run.open(boosted).save_weights("last", weights, "by hand")
    found = mrboost.soup(boosted, tmp_path / "soup", device="cpu")
    members = [dict(one.named_parameters()) for one in mrboost.load(boosted, "last")]
    (network,) = mrboost.load(tmp_path / "soup")
    for name, mine in network.named_parameters():
        mean = sum(w * member[name] for w, member in zip(weights, members, strict=True))
        torch.testing.assert_close(mine, mean)
    assert found.of_ensemble[0] < 0.5
    assert found.accuracies[0] > 0.9
    x, y = digits.test.images(), digits.test.y
    assert (network(x).argmax(dim=1) == y).double().mean() > 0.9


def test_a_soup_is_a_run(boosted: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "soup"
    document = json_of(capsys, "soup", boosted, "--out", out, *CPU)
    assert document["members"] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["soup"]
    (evaluation,) = json_of(capsys, "evaluate", out, "--attack", "fgsm", *CPU)["evaluations"]
    assert evaluation["outcomes"][0]["accuracy"] > 0.9
    done("report", out, "--n", "20", *CPU)
    assert "joins networks" in error_of(capsys, "train", "--resume", "--out", out)
    before = snapshot(tmp_path)
    taken = error_of(capsys, "soup", boosted, "--out", out, *CPU)
    assert "soup' exists already: choose another --out" in taken
    assert "is no ensemble of several networks" in error_of(
        capsys, "soup", out, "--out", tmp_path / "again", *CPU
    )
    assert snapshot(tmp_path) == before
