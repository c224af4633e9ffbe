"""Networks that were trained apart, joined: the same answers as their mean, a run
folder like any other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import mrboost
from commands import error_of, json_of, snapshot
from mrboost.cli.main import main
from mrboost.runs import Run

SMALL = {"device": "cpu", "epochs": 1, "validation": 32}


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """at with two seeds, trades with other held-out images, and two boosted rounds."""
    folder = tmp_path_factory.mktemp("apart")
    for name, recipe, options in (
        ("at0", "at", {}),
        ("at1", "at", {"seed": 1}),
        ("trades", "trades", {"validation": 40}),
        ("boosted", "mrboost", {"rounds": 2, "steps": 1}),
        ("wide", "at", {"eps": 0.2}),
    ):
        mrboost.boost(recipe, "digits", out=folder / name, **SMALL | options)
    return {path.name: path for path in folder.iterdir()}


def test_the_joined_answer_with_their_mean(apart: dict[str, Path], tmp_path: Path) -> None:
    runs = [apart["boosted"], apart["at1"]]
    joined = mrboost.join(runs, tmp_path / "all")
    x = mrboost.data.load("digits").test.images()[:50]
    for which in ("best", "last"):
        members = [member for run in runs for member in mrboost.load(run, which)]
        mean = torch.stack([member(x) for member in members]).double().mean(dim=0)
        torch.testing.assert_close(
            mrboost.load(tmp_path / "all", which)(x).double(), mean, rtol=0, atol=1e-5
        )
    assert len(joined) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["all"]


def test_the_newest_networks_alone_can_be_joined(apart: dict[str, Path], tmp_path: Path) -> None:
    runs = [str(apart["boosted"]), str(apart["at1"])]
    assert main(["join", *runs, "--newest", "--out", str(tmp_path / "ends")]) == 0
    x = mrboost.data.load("digits").test.images()[:50]
    mean = torch.stack([mrboost.load(run, "last")[-1](x) for run in runs]).mean(dim=0)
    torch.testing.assert_close(mrboost.load(tmp_path / "ends", "last")(x), mean)
    assert Run.open(tmp_path / "ends").rounds_done() == 2


def test_what_a_run_has_not_finished_is_missed(
    apart: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half = shutil.copytree(apart["boosted"], tmp_path / "half")
    for path in (half / "members").glob("02*"):
        path.unlink()
    mrboost.join([half, apart["at1"]], tmp_path / "both", newest=True)
    assert f"note: {str(half)!r} has finished 1 of its 2 rounds" in capsys.readouterr().err


def test_a_joined_run_is_a_run(
    apart: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = [str(apart["at0"]), str(apart["at1"])]
    out = str(tmp_path / "deep" / "both")
    assert json_of(capsys, "join", *both, "--out", out) == {"run": out, "members": 2}
    config = Run.open(out).config
    assert (config["rounds"], config["epochs"], config["recipe"]["steps"]) == (2, 1, 10)
    assert "seed" not in config
    assert [part["run"] for part in config["joined"]] == both
    assert [(row["round"], row["epoch"]) for row in Run.open(out).metrics()] == [(1, 1), (2, 1)]
    quick = ["--attack", "fgsm", "--n", "20", "--device", "cpu", "--quiet"]
    staged = json_of(capsys, "evaluate", out, "--staged", "--no-check", *quick)["evaluations"]
    alone = json_of(capsys, "evaluate", both[0], "--no-check", *quick)["evaluations"]
    assert staged[0]["outcomes"][1]["correct"] == alone[0]["outcomes"][1]["correct"]
    assert main(["report", out, both[0], *quick]) == 0
    assert f"{both[0]}, {both[1]}" in (Path(out) / "report.html").read_text()
    assert "joins networks" in error_of(capsys, "train", "--resume", "--out", out)
    assert "another configuration" in error_of(capsys, "train", "at", "--resume", "--out", out)
    options = "--validation 32 --rounds 2 --epochs 1 --steps 1"
    more = [*options.split(), "--out", str(tmp_path / "more")]
    assert main(["train", "mrboost", "--first", out, *more, "--device", "cpu", "--quiet"]) == 0
    first, of_first = (
        mrboost.load(folder, "last", rounds=1) for folder in (tmp_path / "more", both[0])
    )
    assert all(map(torch.equal, first.state_dict().values(), of_first.state_dict().values()))


def test_weights_are_learned_on_images_that_all_held_out(
    apart: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mrboost.join([apart["at0"], apart["at1"]], tmp_path / "same")
    weights = json_of(capsys, "reweight", tmp_path / "same", "--device", "cpu", "--quiet")[
        "weights"
    ]
    assert sum(weights) == pytest.approx(1)
    assert mrboost.load(tmp_path / "same").weights.tolist() == pytest.approx(weights)
    mrboost.join([apart["at0"], apart["trades"]], tmp_path / "others")
    assert "no images that all networks" in error_of(
        capsys, "reweight", tmp_path / "others", "--device", "cpu"
    )


def test_what_does_not_belong_together(
    apart: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*runs: Path, out: Path = tmp_path / "out") -> str:
        return error_of(capsys, "join", *runs, "--out", out)

    before = snapshot(apart["at1"])
    assert "two runs or more" in refused(apart["at0"])
    assert "there is no run folder" in refused(apart["at0"], tmp_path / "nothing")
    assert "eps: 0.1 -> 0.2" in refused(apart["at0"], apart["wide"])
    assert "holds the same networks" in refused(apart["at0"], apart["at0"])
    assert "exists already" in refused(apart["at0"], apart["at1"], out=apart["at1"])
    assert snapshot(apart["at1"]) == before
    mrboost.boost("pinot", "digits", out=tmp_path / "pinot", **SMALL, steps=1)
    assert "randomised" in refused(apart["at0"], tmp_path / "pinot")
    config = {key: value for key, value in Run.open(apart["at1"]).config.items() if key != "format"}
    Run.create(tmp_path / "unfinished", config)
    config["input"] = config["input"] | {"fingerprint": "0" * 16}
    Run.create(tmp_path / "elsewhere", config).adopt(Run.open(apart["at1"]), 1, of=1)
    assert "no finished round" in refused(apart["at0"], tmp_path / "unfinished")
    assert "input.fingerprint: " in refused(apart["at0"], tmp_path / "elsewhere")
    assert not (tmp_path / "out").exists()


def test_nothing_is_left_of_one_that_fails(
    apart: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "save_member", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mrboost.join([apart["at0"], apart["at1"]], tmp_path / "both")
    assert list(tmp_path.iterdir()) == []
