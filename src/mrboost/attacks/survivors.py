"""The queue that runs searches on the points that stand.

``drain`` puts jobs of points (targets and restarts) into lanes, takes a point out as soon as it is
broken, and fills its lane with the next job, so that batches stay full. Between two looks at the
lanes nothing waits for the device.

Whatever a search offers is judged by the model itself in its own precision; only that counts. Every
random number is a function of the image and the seed, so what happens to a point does not depend on
the others, on the number of lanes, or on an interruption.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mrboost.ensemble import Mixture
from mrboost.errors import InputError
from mrboost.seeds import derive, hashed, keep_random_state
from mrboost.speed.graphs import Engine

from .base import (
    LOW_PRECISION,
    BatchedSearch,
    Classifier,
    Rounded,
    attacked,
)
from .checks import check_batch, check_logits
from .points import Points, State, judge


def run(
    model: Classifier,
    x: Tensor,
    y: Tensor,
    searches: Sequence[BatchedSearch],
    seed: int,
    *,
    lanes: int | None = None,
    first: int = 0,
    resume: Callable[[Points], int] = lambda _: 0,
    tell: Callable[[Points, int], object] = lambda *_: None,
    work: Callable[[int], object] = lambda _: None,
) -> Points:
    """Each search on the survivors of the last.

    ``first`` is the number that messages give to the first image. ``resume`` puts what an earlier
    run found into the points and gives the number of the search to go on with; ``tell`` hears of
    the points now and then; ``work`` counts evaluations of single images, those saved by a success
    included.
    """
    check_batch(x, y)
    with attacked(model), keep_random_state(x.device), torch.inference_mode(False):
        x, y = x.detach().clone(), y.clone()
        check(searches, model, x, check_logits(model, x, y))
        if x.dtype in LOW_PRECISION:  # searched and judged in float32 around the model
            model, x = Rounded(model, x.dtype), x.float()
        points = Points.of(model, x, y, seed, first)
        plan = [search.work(points.ranking.shape[1]) for search in searches]
        begun = resume(points)
        work(sum(plan) * int((~points.alive).sum()) + sum(plan[:begun]) * int(points.alive.sum()))
        engine = Engine(model, x)
        for number in range(begun, len(searches)):

            def hear(stage: int = number) -> None:
                tell(points, stage)

            def count(evaluations: int, broken: int, after: int = sum(plan[number + 1 :])) -> None:
                work(evaluations + broken * after)

            drain(searches[number], model, engine, points, number + 1, lanes, hear, count)
            points.done, points.most = points.done[:, :0], 0
            tell(points, number + 1)
    return points


def check(searches: Sequence[BatchedSearch], model: Classifier, x: Tensor, classes: int) -> None:
    """Refuse what these searches cannot attack."""
    Mixture.check_outermost(model, x)
    if isinstance(model, Mixture):
        raise InputError(
            f"{searches[0].name} stops at the first mistake, and a Mixture is right or wrong with "
            "a probability: use pgd-100, or --adaptive"
        )
    for search in searches:
        search.check(x, classes)


@dataclass
class _Lanes:
    """What runs side by side: the search's state, and on the CPU each lane's point, job
    and evaluations so far."""

    state: State
    owner: Tensor
    job: Tensor
    spent: Tensor

    @classmethod
    def of(cls, saved: State, device: torch.device) -> _Lanes:
        """The lanes of an earlier run that stopped, or none."""
        state = {name: value.to(device) for name, value in saved.items()} if "job" in saved else {}
        none = torch.zeros(0, dtype=torch.int64)
        owner, job = (state.pop(name).cpu() if state else none for name in ("owner", "job"))
        return cls(state, owner, job, state["t"].cpu() if state else none)

    def add(self, search: BatchedSearch, points: Points, pairs: Tensor) -> None:
        job, owner = pairs.T
        here, number = owner.to(points.x.device), job.to(points.x.device)
        # One number for each search and job, so that no two of them share a stream.
        keys = hashed(points.keys[here], number + derive(0, search.name) % 2**32)
        fresh = search.begin(points.x[here], points.y[here], points.ranking[here], keys, number)
        self.state = {
            key: torch.cat([self.state[key], value]) if self.state else value
            for key, value in fresh.items()
        }
        self.owner, self.job = torch.cat([self.owner, owner]), torch.cat([self.job, job])
        self.spent = torch.cat([self.spent, torch.zeros_like(job)])

    def refill(self, search: BatchedSearch, points: Points, most: int) -> bool:
        """Fill lanes up to so many with jobs that wait; whether anything runs then."""
        if len(pairs := points.pending(self.owner, self.job)[: max(0, most - len(self.owner))]):
            self.add(search, points, pairs)
        return bool(self.state)

    def standing(self, points: Points, spent: Tensor) -> int:
        """The evaluations ``spent`` of lanes whose point stands."""
        return int(spent[points.alive[self.owner]].sum())

    def keep(self, stay: Tensor) -> None:
        index = stay.nonzero().squeeze(1)
        self.owner, self.job, self.spent = self.owner[index], self.job[index], self.spent[index]
        self.state = (
            {key: value[index.to(value.device)] for key, value in self.state.items()}
            if len(index)
            else {}
        )

    def saved(self) -> State:
        return self.state | {"owner": self.owner, "job": self.job} if self.state else {}


def drain(
    search: BatchedSearch,
    model: Classifier,
    engine: Engine,
    points: Points,
    number: int,
    lanes: int | None,
    tell: Callable[[], object],
    count: Callable[[int, int], object],
) -> None:
    """Run ``search`` on all points that stand, as ``number`` in the order of attacks.

    Full lanes are faster than few, so several jobs of a point run side by side. The image that
    counts is still that of the first job to break the point: jobs after it stop, jobs before it go
    on.
    """
    search = search if lanes is None else search.within(lanes)
    jobs, each = search.jobs(points.ranking.shape[1]), search.evaluations()
    if points.done.shape[1] != jobs:
        points.done = torch.zeros(len(points.x), jobs, dtype=torch.bool)
    at = _Lanes.of(points.lanes, points.x.device)
    count(each * int(points.done[points.alive].sum()) + at.standing(points, at.spent), 0)
    waiting = int((~points.done[points.alive]).sum())
    most = lanes or engine.lanes
    # As many rounds as needed, equally full; after an interruption as before it: a model that draws
    # gives each lane its own draws.
    most = points.most = min(most, points.most or -(-waiting // max(1, -(-waiting // most))))
    breaker = torch.full((len(points.x),), jobs)  # the first job that broke a point
    while at.refill(search, points, most):
        stride, left = search.strides[points.x.is_cuda], each - int(at.spent.min())
        try:
            at.state = engine.advance(search.advance, at.state, stride, number, left)
        except torch.OutOfMemoryError:
            if most == 1 or lanes is not None:
                raise
            most = points.most = most // 2
            search = search.within(most)
            count(-at.standing(points, at.spent), 0)
            at.keep(torch.zeros_like(at.owner, dtype=torch.bool))  # they start again
            continue
        before, at.spent = at.spent, at.state["t"].cpu()
        count(at.standing(points, at.spent - before), 0)
        over = at.spent >= each
        look = over if search.patient else over | at.state["hit"].cpu()
        if look.any():
            stood = points.alive
            _judge_lanes(look, search, model, points, number, at, breaker)
            fell = stood & ~points.alive
            used = (each * points.done.sum(dim=1)).index_add_(0, at.owner, at.spent)
            count(int((jobs * each - used[fell]).sum()), int(fell.sum()))
            points.done[at.owner[over], at.job[over]] = True
            at.keep(~over & (breaker[at.owner] > at.job))
        points.lanes = at.saved()
        tell()
    points.lanes = {}


def _judge_lanes(
    look: Tensor,
    search: BatchedSearch,
    model: Classifier,
    points: Points,
    number: int,
    at: _Lanes,
    breaker: Tensor,
) -> None:
    """What the model itself says of the images that these lanes found; ``breaker`` is told of
    each point that falls."""
    # Still the clean image
    known = (at.state["found"] == at.state["x"]).flatten(1).all(dim=1) & ~at.state["hit"]
    look = (look & ~known.cpu()).nonzero().squeeze(1)
    if len(look) == 0:
        return
    lane = look.to(points.x.device)
    images = at.state["found"][lane]
    logits = judge(model, images, search.name, at.owner[look] + points.first)
    search.refute(at.state, lane)
    for job in sorted(set(at.job[look].tolist())):  # no point twice at a time, and low jobs first
        mine = ((at.job[look] == job) & (breaker[at.owner[look]] > job)).nonzero().squeeze(1)
        here, who = mine.to(lane.device), at.owner[look[mine]]
        broken = points.learn(who, images[here], logits[here], number)
        breaker[who[broken]] = job
