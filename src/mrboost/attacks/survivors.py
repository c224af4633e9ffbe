"""Runs searches one after another, each on the images that the last ones left standing.

A search has one or several *jobs* for each image: its targets and restarts. The rows of the batch
that the model sees are *lanes*, and a job runs in one lane from its start to its end. ``Queue``
fills the lanes with jobs that wait, takes all jobs of an image out as soon as it is broken, and
gives their lanes to others, so that batches stay full. It looks at the lanes only every few steps,
since to look means to wait for the device.

Whatever a search finds is judged by the model itself in its own precision; only that counts. Every
random number is a function of the image and the seed, so what happens to an image does not depend
on the others, on the number of lanes, or on an interruption.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from mrboost.ensemble import Mixture
from mrboost.errors import InputError
from mrboost.seeds import derive, hash_keys, keep_random_state
from mrboost.speed.graphs import Engine
from mrboost.speed.memory import halved

from .base import LOW_PRECISION, BatchedSearch, Classifier, Rounded, State, attacked
from .checks import check_batch, check_logits
from .points import Points, judge


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

    Args:
        model, x, y: the model under attack, images and labels.
        searches: what runs, in this order.
        seed: of all random numbers.
        lanes: how many images the model sees at a time; chosen if not given.
        first: the number that messages give to the first image.
        resume: called once with the points of the clean images; may ``restore`` what an earlier run
            found, and returns the index of the search to go on with.
        tell: called every few steps with the points and the index of the search under way, or
            after one has ended of the next.
        work: called with a number of evaluations of single images that are done, or that are not
            needed any more.

    Returns:
        The worst version of each image, and which search broke it.
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
        standing = int(points.alive.sum())
        work(sum(plan) * (len(x) - standing) + sum(plan[:begun]) * standing)
        engine = Engine(model, x)
        for number in range(begun, len(searches)):
            search, most = searches[number], lanes or engine.lanes
            queue = Queue(search, model, points, number + 1, most, fixed=lanes is not None)
            work(queue.done_before())
            later = sum(plan[number + 1 :])
            for evaluations, broken in queue.run(engine):
                work(evaluations + broken * later)
                tell(points, number)
            points.done = points.done[:, :0]
            points.most = 0
            tell(points, number + 1)
    return points


def check(searches: Sequence[BatchedSearch], model: Classifier, x: Tensor, classes: int) -> None:
    """Refuse what these searches cannot attack."""
    Mixture.check_outermost(model)
    if isinstance(model, Mixture):
        raise InputError(
            f"{searches[0].name} stops at the first mistake, and a Mixture is right or wrong with "
            "a probability: use pgd-100, or --adaptive"
        )
    for search in searches:
        search.check(x, classes)


class Queue:
    """The jobs of one search on the points that stand, and the lanes in which some of them run.

    Several jobs of a point can run side by side. The image that counts is still that of the first
    job to break the point: jobs after it stop, jobs before it go on.

    Args:
        search: what runs.
        model: the judge of what it finds.
        points: what it runs on.
        number: of the search in the order of attacks, from 1.
        most: how many lanes there are.
        fixed: whether their number is the user's choice.
    """

    state: State
    """The search's: a row for each lane; empty if nothing runs."""
    owner: Tensor
    """Which point each lane works on. On the CPU, as ``job`` and ``spent`` are."""
    job: Tensor
    """Which of the point's jobs runs in each lane."""
    spent: Tensor
    """The evaluations that each lane has had."""

    def __init__(
        self,
        search: BatchedSearch,
        model: Classifier,
        points: Points,
        number: int,
        most: int,
        *,
        fixed: bool,
    ) -> None:
        self.search = search.within(most) if fixed else search
        self.model = model
        self.points = points
        self.number = number
        self.fixed = fixed
        self.jobs = search.jobs(points.ranking.shape[1])
        self.length = search.evaluations()
        if points.done.shape[1] != self.jobs:
            points.done = torch.zeros(len(points.x), self.jobs, dtype=torch.bool)
        # After an interruption as many as before: a model that draws random numbers gives each lane
        # its own.
        waiting = int((~points.done[points.alive]).sum())
        self.most = points.most = min(most, points.most or _evenly_filled(waiting, most))
        self.first_breaker = torch.full((len(points.x),), self.jobs)
        self._restore(points.lanes)

    def done_before(self) -> int:
        """The evaluations that an interrupted run has had of points that still stand."""
        jobs = int(self.points.done[self.points.alive].sum())
        return self.length * jobs + self._of_standing(self.spent)

    def run(self, engine: Engine) -> Iterator[tuple[int, int]]:
        """Run all jobs; after every few steps, the evaluations that were done or are not needed any
        more, and the number of points that fell."""
        while self._fill():
            yield self._advance(engine)

    def _fill(self) -> bool:
        """Start waiting jobs in free lanes, low jobs first; whether any lane runs then."""
        points = self.points
        waiting = ~points.done & points.alive[:, None]
        waiting[self.owner, self.job] = False
        pairs = waiting.T.nonzero()[: max(0, self.most - len(self.owner))]
        if len(pairs):
            self._start(*pairs.T)
        return bool(self.state)

    def _start(self, job: Tensor, owner: Tensor) -> None:
        points = self.points
        number, here = job.to(points.x.device), owner.to(points.x.device)
        # One number for each search and job, so that no two of them share a stream.
        keys = hash_keys(points.keys[here], number + derive(0, self.search.name) % 2**32)
        new = self.search.begin(points.x[here], points.y[here], points.ranking[here], keys, number)
        if self.state:
            new = {key: torch.cat([self.state[key], value]) for key, value in new.items()}
        self.state = new
        self.owner = torch.cat([self.owner, owner])
        self.job = torch.cat([self.job, job])
        self.spent = torch.cat([self.spent, torch.zeros_like(job)])

    def _advance(self, engine: Engine) -> tuple[int, int]:
        """A few steps of all lanes, and a look at what they found."""
        search, points = self.search, self.points
        count = search.cuda_stride if points.x.is_cuda else search.cpu_stride
        left = self.length - int(self.spent.min())
        try:
            self.state = engine.advance(search.advance, self.state, count, self.number, left)
        except torch.OutOfMemoryError as error:
            return self._shrink(error), 0
        before = self.spent
        self.spent = self.state["t"].cpu()
        evaluations = self._of_standing(self.spent - before)
        broken = 0
        ended = self.spent >= self.length
        look = ended if search.patient else ended | self.state["hit"].cpu()
        if look.any():
            stood = points.alive
            self._judge(look)
            fallen = stood & ~points.alive
            had = (self.length * points.done.sum(dim=1)).index_add_(0, self.owner, self.spent)
            evaluations += int((self.jobs * self.length - had[fallen]).sum())
            broken = int(fallen.sum())
            points.done[self.owner[ended], self.job[ended]] = True
            self._keep(~ended & (self.first_breaker[self.owner] > self.job))
        points.lanes = self._saved()
        return evaluations, broken

    def _shrink(self, error: torch.OutOfMemoryError) -> int:
        """Half the lanes, in which all jobs start again; their evaluations, to be taken back."""
        self.most = self.points.most = halved(self.most, error, fixed=self.fixed)
        self.search = self.search.within(self.most)
        lost = self._of_standing(self.spent)
        self._keep(torch.zeros_like(self.owner, dtype=torch.bool))
        self.points.lanes = {}
        return -lost

    def _judge(self, look: Tensor) -> None:
        """Ask the model itself about the images that these lanes found."""
        state, points = self.state, self.points
        still_clean = (state["found"] == state["x"]).flatten(1).all(dim=1) & ~state["hit"]
        look = (look & ~still_clean.cpu()).nonzero().squeeze(1)
        if len(look) == 0:
            return
        lane = look.to(points.x.device)
        images, owner, job = state["found"][lane], self.owner[look], self.job[look]
        logits = judge(self.model, images, self.search.name, owner + points.first)
        self.search.refute(state, lane)
        for one in sorted(set(job.tolist())):  # no point twice at a time, and low jobs first
            mine = ((job == one) & (self.first_breaker[owner] > one)).nonzero().squeeze(1)
            here = mine.to(lane.device)
            broken = points.learn(owner[mine], images[here], logits[here], self.number)
            self.first_breaker[owner[mine][broken]] = one

    def _of_standing(self, spent: Tensor) -> int:
        """The sum of ``spent`` over the lanes whose point stands."""
        return int(spent[self.points.alive[self.owner]].sum())

    def _keep(self, stay: Tensor) -> None:
        """Take all other lanes out."""
        index = stay.nonzero().squeeze(1)
        self.owner, self.job, self.spent = self.owner[index], self.job[index], self.spent[index]
        if len(index) == 0:
            self.state = {}
        self.state = {key: value[index.to(value.device)] for key, value in self.state.items()}

    def _saved(self) -> State:
        return self.state | {"owner": self.owner, "job": self.job} if self.state else {}

    def _restore(self, saved: State) -> None:
        none = torch.zeros(0, dtype=torch.int64)
        lanes = {name: value.to(self.points.x.device) for name, value in saved.items()}
        self.owner = lanes.pop("owner", none).cpu()
        self.job = lanes.pop("job", none).cpu()
        self.state = lanes
        self.spent = lanes["t"].cpu() if lanes else none


def _evenly_filled(waiting: int, most: int) -> int:
    """The least number of lanes in which jobs run in no more rounds than in the ``most`` lanes."""
    rounds = max(1, math.ceil(waiting / most))
    return math.ceil(waiting / rounds)
