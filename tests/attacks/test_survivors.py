"""The queue that runs searches: interruptions, jobs side by side, the count of work,
memory that runs out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mrboost.attacks import APGD, FAB, AutoAttack, Search, Square
from mrboost.attacks.survivors import Hooks, Points, judge, run


def test_an_interrupted_search_goes_on_to_the_same_result(search: Search, model, batch) -> None:
    x, y = batch[0][:6], batch[1][:6]
    attempts = [search, Square(search.eps, search.norm, steps=30)]
    heard: list[tuple[dict[str, Tensor], int]] = []

    def hear(points: Points, stage: int) -> None:
        heard.append(({name: value.clone() for name, value in points.saved().items()}, stage))

    whole = run(model, x, y, attempts, 0, lanes=4, hooks=Hooks(tell=hear))
    for state, stage in (heard[0], heard[3]):

        def resume(points: Points, state=state, stage=stage) -> int:
            points.restore(state)
            return stage

        again = run(model, x, y, attempts, 0, lanes=4, hooks=Hooks(resume=resume))
        assert torch.equal(again.broken_by, whole.broken_by)
        # Batches differ, and so do last bits
        close = (again.adv - whole.adv).abs().flatten(1).amax(1) < 1e-4
        assert close.float().mean() > 0.9


@pytest.mark.parametrize(
    "search", [APGD(0.15, steps=10, targets=5), FAB(0.15, steps=5, targets=5)], ids=["apgd", "fab"]
)
def test_jobs_side_by_side_find_what_they_find_in_turn(search: Search, model, batch) -> None:
    """The same points break, by the same image: that of the first job which breaks a point."""
    batch = batch[0][:24], batch[1][:24]
    in_turn = run(model, *batch, [search], 0, lanes=1)
    if isinstance(search, APGD):
        by_the_first = run(model, *batch, [replace(search, targets=1)], 0).broken_by == 1
        assert by_the_first.sum() < (in_turn.broken_by == 1).sum(), (
            "some points break at a later job only"
        )
    for lanes in (None, 40):
        done: list[int] = []
        at_once = run(model, *batch, [search], 0, lanes=lanes, hooks=Hooks(work=done.append))
        assert sum(done) == 24 * search.work(10)
        assert torch.equal(at_once.broken_by, in_turn.broken_by)
        close = (at_once.adv - in_turn.adv).abs().flatten(1).amax(1) < 1e-4
        assert close.float().mean() > 0.95


def test_work_adds_up(model, batch) -> None:
    """The progress bar ends at what was announced, whatever broke when."""
    attack = AutoAttack(0.1)
    done: list[int] = []
    searches = [APGD(0.1, steps=9), FAB(0.1, steps=5, targets=3), Square(0.1, steps=40)]
    run(model, *batch, searches, 0, lanes=20, hooks=Hooks(work=done.append))
    assert sum(done) == 64 * sum(search.work(10) for search in searches)
    assert attack.work(10) == 101 + 9 * 101 + 9 * 100 + 5001


def test_long_searches_tell_of_their_work_and_are_saved_within_a_job(model, batch) -> None:
    """Square runs thousands of queries in one job: the bar moves, and what is saved
    goes on from the middle."""
    x, y = batch[0][:8], batch[1][:8]
    done: list[int] = []
    seen: list[dict[str, Tensor]] = []
    search = Square(0.05, steps=300)

    def hear(points: Points, stage: int) -> None:
        seen.append({name: value.clone() for name, value in points.saved().items()})

    whole = run(model, x, y, [search], 0, hooks=Hooks(work=done.append, tell=hear))
    assert len(done) > 8
    assert sum(done) == 8 * 301
    middle = seen[5]
    assert int(middle["lanes.t"].max()) > 100
    calls = 0

    def counted(images: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return model(images)

    again = run(
        counted, x, y, [search], 0, hooks=Hooks(resume=lambda points: points.restore(middle) or 0)
    )
    assert calls < 210
    assert torch.equal(again.broken_by, whole.broken_by)
    assert again.adv == pytest.approx(whole.adv, abs=1e-5)


def test_memory_running_out_leaves_one_query_at_a_time(model, batch, monkeypatch) -> None:
    """Square asks about several versions of an image at once: fewer lanes must
    not mean more of those."""
    x, y = batch[0][:6], batch[1][:6]
    search, step, most = Square(0.1, steps=40), Square.step, 0

    def small(self: Square, network, state: dict[str, Tensor]) -> dict[str, Tensor]:
        def watched(images: Tensor) -> Tensor:
            nonlocal most
            if len(images) > 1:
                raise torch.OutOfMemoryError("no room")
            most = max(most, len(images))
            return network(images)

        return step(self, watched, state)

    expected = run(model, x, y, [search], 0)
    monkeypatch.setattr(Square, "step", small)
    found = run(model, x, y, [search], 0)
    assert most == 1
    assert torch.equal(found.broken_by, expected.broken_by)
    assert found.adv == pytest.approx(expected.adv, abs=1e-5)


def test_memory_running_out_halves_the_lanes(model, batch) -> None:
    x, y = batch
    expected = run(model, x, y, [APGD(0.1, steps=5)], 0)
    sizes: list[int] = []

    def small(images: Tensor) -> Tensor:
        sizes.append(len(images))
        if len(images) > 20 and images.requires_grad:
            raise torch.OutOfMemoryError("no room")
        return model(images)

    points = run(small, x, y, [APGD(0.1, steps=5)], 0)
    assert torch.equal(points.broken_by, expected.broken_by)
    with pytest.raises(torch.OutOfMemoryError):
        run(small, x, y, [APGD(0.1, steps=5)], 0, lanes=60)


def test_the_judge_asks_for_less_where_there_is_no_room() -> None:
    """In batches of one size, filled up with images whose answers are not looked at; a model may
    work in place, and answer in the same place each time."""
    x, sizes, place = torch.rand(11, 3), [], torch.zeros(2, 3)

    def model(images: Tensor) -> Tensor:
        if len(images) > 4:
            raise torch.OutOfMemoryError("no room")
        sizes.append(len(images))
        return place.copy_(images.mul_(2))

    given = x.clone()
    assert torch.equal(judge(model, given, "", torch.arange(11)), 2 * x)
    assert torch.equal(given, x)
    assert sizes == [2] * 6


@pytest.mark.parametrize(
    "search", [Square(1e-9, steps=40), Square(1e-9, "L2", steps=40), APGD(1e-9, steps=8)]
)
def test_a_hit_on_the_clean_image_is_refuted_and_the_search_ends(search: Search) -> None:
    """A copy may be wrong about the image itself, where the model is right."""
    x, weight = torch.rand(6, 1, 8, 8).clamp(0.5, 0.9), torch.randn(64, 3)
    y, judged, heard = (x.flatten(1) @ weight).argmax(1), [], []

    def liar(images: Tensor) -> Tensor:
        logits = images.flatten(1) @ weight
        if torch.backends.cudnn.conv.fp32_precision != "ieee":
            return -logits
        judged.append(len(images))
        return logits

    def hear(*_: object) -> None:
        heard.append(len(judged))
        assert len(heard) < 1000, "it does not end"

    work: list[int] = []
    assert run(liar, x, y, [search], 0, hooks=Hooks(tell=hear, work=work.append)).alive.all()
    assert sum(work) == 6 * search.work(3)
    assert len(judged) > 1


def test_images_that_are_still_clean_are_not_judged_again(model, batch) -> None:
    x, y = batch[0][:10], batch[1][:10]
    judged = 0

    def counted(images: Tensor) -> Tensor:
        nonlocal judged
        judged += len(images) * (torch.backends.cudnn.conv.fp32_precision == "ieee")
        return model(images)

    assert run(counted, x, y, [FAB(1e-4, steps=3, targets=9)], 0).alive.all()
    assert judged <= 10 + 1
