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
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from mrboost.devices import exact_float32, halved, in_batches
from mrboost.ensemble import Classifier, Mixture
from mrboost.errors import InputError, NanLogitsError
from mrboost.files import State
from mrboost.losses import margin
from mrboost.seeds import derive, hash_keys, image_keys, uniform_from_keys
from mrboost.speed.graphs import Engine
from mrboost.threat import wide

from .base import InBall, takes_arrays
from .model import LOW_PRECISION, Rounded, check_targets, checked
from .targets import nearest_first

_CLEAN_BATCH = 512
_CUDA_BATCHES = (32, 256)
_SAVED = ("adv", "margin", "broken_by", "done")
_SAMPLING = torch.tensor(derive(0, "sample") % 2**32)


@dataclass(frozen=True)
class InTurn(InBall):
    """One or several searches in turn, each on the images that the last ones left standing."""

    @property
    @abstractmethod
    def searches(self) -> tuple[Search, ...]:
        """What runs, in this order."""

    def work(self, classes: int) -> int:
        """Evaluations of the model for one image that withstands."""
        return sum(search.jobs(classes) * search.evaluations() for search in self.searches)

    @takes_arrays
    def __call__(
        self, model: Classifier, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """The worst images found: misclassified where a search succeeded, else those of the highest
        margin."""
        found = run(model, x, y, self.searches, seed_of(self.seed, generator))
        return found.adv.to(x.dtype)


@dataclass(frozen=True)
class Search(InTurn):
    """An attack that can run on many images at once, each at its own iteration.

    It keeps no state of its own. The state is a dictionary of tensors, whose rows are lanes;
    ``begin`` adds to it what the search needs, and ``step`` maps it to the next. ``Queue`` decides
    what runs in the lanes. There are at least these entries:

    ==========  ==========================================================
    ``x, y``    the clean image and its label
    ``t``       evaluations of the model so far
    ``hit``     whether ``found`` is misclassified, as far as the copy of the model says
    ``found``   the image to show to the judge
    ==========  ==========================================================

    Args:
        near: it runs on the images whose lead is at most this share of what it was on the clean
            image, by default on all that stand.
        sample: and on this share of the others, which a hash of the image chooses.

    Attributes:
        cpu_stride: steps between two looks at the lanes on the CPU.
        cuda_stride: the same on a CUDA device, where to look means to wait for it.
    """

    steps: int = field(default=100, kw_only=True)
    seed: int | None = field(default=0, kw_only=True)
    near: float = field(default=math.inf, kw_only=True)
    sample: float = field(default=0.0, kw_only=True)

    cpu_stride = 5
    cuda_stride = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least_one("steps")

    @property
    def searches(self) -> tuple[Search, ...]:
        return (self,)

    @property
    def stage(self) -> str:
        """What the name of one of several in turn says: also of its images, if not of all."""
        if self.sample:
            return f"{self.name} sample"
        return self.name if self.near == math.inf else f"{self.name} near"

    @property
    def patient(self) -> bool:
        """Whether a hit waits for the end of its job, since a randomised model may answer otherwise
        the next time."""
        return False

    def jobs(self, classes: int) -> int:
        """How many runs an image gets: restarts and targets."""
        return 1

    def evaluations(self) -> int:
        """Evaluations of the model in one job."""
        return self.steps

    def check(self, x: Tensor, classes: int) -> None:
        """Refuse images or models that this search cannot work on, before anything is computed."""

    def chosen(self, points: Points) -> Tensor:
        """Which points it runs on, of those that stand. On the CPU."""
        drawn = uniform_from_keys(hash_keys(points.keys, _SAMPLING), (1,)).squeeze(1)
        far = points.margin < self.near * points.clean_margin  # of a margin of 0 neither is more
        return (~far | (drawn < self.sample)).cpu()

    def order(self, model: Classifier, points: Points) -> Tensor:
        """The classes of each point in the order in which they are aimed at, from the second on."""
        return points.ranking

    def within(self, lanes: int) -> Search:
        """The same search, which shows the model no more than so many images at a time."""
        return self

    @abstractmethod
    def begin(self, x: Tensor, y: Tensor, ranking: Tensor, keys: Tensor, job: Tensor) -> State:
        """The state of new lanes, but for ``x``, ``y``, ``t`` and ``hit``.

        Args:
            x, y: image and label of each lane.
            ranking: the true label, then the others in the order in which they are aimed at,
                ``(N, K)``.
            keys: a number for each lane, from which its random numbers follow.
            job: which of the image's jobs it is to run.
        """

    @abstractmethod
    def step(self, model: Classifier, state: State) -> State:
        """One evaluation of every lane, or several; waits for nothing on the device."""

    def advance(self, model: Classifier, state: State) -> State:
        """A step of the lanes that have evaluations left; the others keep what they found."""
        over = state["t"] >= self.evaluations()
        new = self.step(model, state)
        return new | {
            key: torch.where(wide(over, new[key]), state[key], new[key])
            for key in ("t", "hit", "found")
        }

    def refute(self, state: State, lanes: Tensor) -> None:
        """Go on in these lanes: the model itself did not agree that they were hits."""
        state["hit"][lanes] = False


@dataclass(frozen=True)
class Aimed(Search):
    """A search with one job for each target and restart.

    The targets are the ``targets`` most likely false labels in turn; with 0 of them the runs are
    untargeted.

    Args:
        nearest: the nine most likely labels come in the order of their boundaries' distances from
            the worst image found so far (``targets.py``).
    """

    targets: int = field(default=0, kw_only=True)
    restarts: int = field(default=1, kw_only=True)
    nearest: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least_one("restarts")
        if self.targets < 0:
            raise InputError(f"targets must be at least 0, got {self.targets}")

    @takes_arrays
    def __call__(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,
        targets: Tensor | None = None,
    ) -> Tensor:
        """The worst images found.

        With ``targets``, a label for each image, those that the model takes for that label, or else
        those that come nearest to it: the runs then lower the loss of that label (APGD), or go to
        its boundary (FAB).
        """
        if targets is None:
            return super().__call__(model, x, y, generator=generator)
        searches = (replace(self, targets=0),)
        found = run(model, x, y, searches, seed_of(self.seed, generator), aim=targets)
        return found.adv.to(x.dtype)

    def jobs(self, classes: int) -> int:
        return self.restarts * (min(self.targets, classes - 1) or 1)

    def order(self, model: Classifier, points: Points) -> Tensor:
        if not self.nearest:
            return points.ranking
        order = points.ranking.clone()
        here = points.alive.to(order.device)
        order[here] = nearest_first(model, points.adv[here], order[here], self.threat)
        return order

    def target(self, ranking: Tensor, job: Tensor) -> Tensor:
        """The label that each lane's job is aimed at."""
        return ranking.gather(1, (job // self.restarts + 1)[:, None]).squeeze(1)

    def start(self, x: Tensor, keys: Tensor, radius: Tensor | float) -> Tensor:
        """Images at distance ``radius`` in a random direction, clipped to the box."""
        draw = 2 * uniform_from_keys(keys, x.shape[1:]).to(x.dtype) - 1
        noise = self.threat.direction(draw)
        length = self.threat.distance(noise, torch.zeros_like(noise))
        return (x + noise * wide(radius / length, x)).clamp(0, 1)


def seed_of(seed: int | None, generator: torch.Generator | None) -> int:
    """The attack's seed, or one drawn from the generator, if there is one, or at random."""
    if generator is not None:
        return int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
    return torch.Generator().seed() if seed is None else seed


@dataclass(frozen=True)
class Hooks:
    """What a caller of ``run`` does meanwhile.

    Attributes:
        resume: called once with the points of the clean images; may ``restore`` what an earlier run
            found, and returns the index of the search to go on with.
        tell: called every few steps with the points and the index of the search under way, or
            after one has ended of the next.
        work: called with a number of evaluations of single images that are done, or that are not
            needed any more; it is negative where memory ran out and they are done again.
    """

    resume: Callable[[Points], int] = lambda _: 0
    tell: Callable[[Points, int], object] = lambda *_: None
    work: Callable[[int], object] = lambda _: None


def run(
    model: Classifier,
    x: Tensor,
    y: Tensor,
    searches: Sequence[Search],
    seed: int,
    *,
    lanes: int | None = None,
    hooks: Hooks = Hooks(),  # noqa: B008 — a frozen value
    aim: Tensor | None = None,
) -> Points:
    """Each search on the survivors of the last.

    Args:
        model, x, y: the model under attack, images and labels.
        searches: what runs, in this order.
        seed: of all random numbers.
        lanes: how many images the model sees at a time; chosen if not given.
        hooks: what is called on the way.
        aim: the label that each image is to get, where not any mistake counts.

    Returns:
        The worst version of each image, and which search broke it.
    """
    with checked(model, x, y) as (images, labels, classes):
        aim = None if aim is None else check_targets(aim, labels, classes)
        check(searches, model, images, classes)
        if images.dtype in LOW_PRECISION:  # searched and judged in float32 around the model
            model, images = Rounded(model, images.dtype), images.float()
        points = Points.of(model, images, labels, seed, aim)
        plan = [search.work(classes) for search in searches]
        counted = 0

        def count(stage: int, evaluations: int) -> None:
            """Tell of the work since the last time. What has fallen needs no more; of what stands
            the searches before this stage are done, and so many evaluations of this one."""
            nonlocal counted
            standing = int(points.alive.sum())
            done = sum(plan) * (len(x) - standing) + sum(plan[:stage]) * standing + evaluations
            hooks.work(done - counted)
            counted = done

        begun = hooks.resume(points)
        engine = Engine(model, images)
        for number in range(begun, len(searches)):
            queue = Queue(searches[number], model, points, number + 1, engine, lanes)
            count(number, queue.evaluations())
            while queue.fill():
                queue.advance()
                count(number, queue.evaluations())
                hooks.tell(points, number)
            points.done = points.done[:, :0]
            points.most = 0
            hooks.tell(points, number + 1)
    return points


def check(searches: Sequence[Search], model: Classifier, x: Tensor, classes: int) -> None:
    """Refuse what these searches cannot attack."""
    Mixture.check_outermost(model)
    if isinstance(model, Mixture):
        problem = "stops at the first mistake, and a Mixture is right with a probability"
        raise InputError(f"{searches[0].name} {problem}: use pgd-100, or --adaptive")
    for search in searches:
        search.check(x, classes)


@dataclass
class Queue:
    """The jobs of one search on the points that stand, and the lanes in which some of them run.

    Several jobs of a point can run side by side. The image that counts is still that of the first
    job to break the point: jobs after it stop, jobs before it go on.

    Args:
        search: what runs.
        model: the judge of what it finds.
        points: what it runs on.
        number: of the search in the order of attacks, from 1.
        engine: takes the steps.
        lanes: how many lanes there are, if that is the user's choice.

    Attributes:
        state: the search's: a row for each lane; empty if nothing runs.
        owner: which point each lane works on. On the CPU, as ``job`` and ``spent`` are.
        job: which of the point's jobs runs in each lane.
        spent: the evaluations that each lane has had.
    """

    search: Search
    model: Classifier
    points: Points
    number: int
    engine: Engine
    lanes: int | None

    def __post_init__(self) -> None:
        search, points = self.search, self.points
        self.search = search.within(self.lanes) if self.lanes else search
        self.length = search.evaluations()
        jobs = search.jobs(points.ranking.shape[1])
        if points.done.shape[1] != jobs:
            points.done = ~search.chosen(points)[:, None].repeat(1, jobs)
            points.order = search.order(self.engine.model, points)
        # As few lanes as need no more rounds; after an interruption as many as before it, since a
        # model that draws random numbers gives each lane its own.
        most = self.lanes or self.engine.lanes
        waiting = int((~points.done[points.alive]).sum())
        rounds = max(1, math.ceil(waiting / most))
        points.most = min(most, points.most or math.ceil(waiting / rounds))
        self.first_breaker = torch.full((len(points.x),), jobs)
        none = torch.zeros(0, dtype=torch.int64)
        self.state = {name: value.to(points.x.device) for name, value in points.lanes.items()}
        self.owner = self.state.pop("owner", none).cpu()
        self.job = self.state.pop("job", none).cpu()
        self.spent = self.state.get("t", none).cpu()

    def evaluations(self) -> int:
        """The evaluations that the points that stand have had in this search."""
        alive = self.points.alive
        in_lanes = self.spent[alive[self.owner]].sum()
        return self.length * int(self.points.done[alive].sum()) + int(in_lanes)

    def fill(self) -> bool:
        """Start waiting jobs in free lanes, low jobs first; whether any lane runs then."""
        points = self.points
        waiting = ~points.done & points.alive[:, None]
        waiting[self.owner, self.job] = False
        pairs = waiting.T.nonzero()[: max(0, points.most - len(self.owner))]
        if len(pairs):
            self._start(*pairs.T)
        return bool(self.state)

    def _start(self, job: Tensor, owner: Tensor) -> None:
        points = self.points
        number, here = job.to(points.x.device), owner.to(points.x.device)
        # One number for each search and job, so that no two of them share a stream.
        keys = hash_keys(points.keys[here], number + derive(0, self.search.name) % 2**32)
        x, y = points.x[here], points.y[here]
        hit = torch.zeros_like(y, dtype=torch.bool)
        new = {"x": x, "y": y, "t": torch.zeros_like(y), "hit": hit}
        if points.aim is not None:
            new["aim"] = points.aim[here]
        new |= self.search.begin(x, y, points.order[here], keys, number)
        if self.state:
            new = {key: torch.cat([self.state[key], value]) for key, value in new.items()}
        self.state = new
        self.owner = torch.cat([self.owner, owner])
        self.job = torch.cat([self.job, job])
        self.spent = torch.cat([self.spent, torch.zeros_like(job)])

    def advance(self) -> None:
        """A few steps of all lanes, and a look at what they found."""
        search, points = self.search, self.points
        count = search.cuda_stride if points.x.is_cuda else search.cpu_stride
        left = self.length - int(self.spent.min())
        try:
            self.state = self.engine.advance(search.advance, self.state, count, self.number, left)
        except torch.OutOfMemoryError as error:
            self._shrink(error)
            return
        self.spent = self.state["t"].cpu()
        ended = self.spent >= self.length
        look = ended if search.patient else ended | self.state["hit"].cpu()
        if look.any():
            self._judge(look)
            points.done[self.owner[ended], self.job[ended]] = True
            self._keep(~ended & (self.first_breaker[self.owner] > self.job))
        points.lanes = {}
        if self.state:
            points.lanes = self.state | {"owner": self.owner, "job": self.job}

    def _shrink(self, error: torch.OutOfMemoryError) -> None:
        """Half the lanes, in which all jobs start again."""
        fewer = halved(self.points.most, error, fixed=self.lanes is not None)
        self.points.most = fewer
        self.search = self.search.within(fewer)
        self._keep(torch.zeros_like(self.owner, dtype=torch.bool))
        self.points.lanes = {}

    def _judge(self, look: Tensor) -> None:
        """Ask the model itself about the images that these lanes found."""
        state, points = self.state, self.points
        still_clean = (state["found"] == state["x"]).flatten(1).all(dim=1) & ~state["hit"]
        look = (look & ~still_clean.cpu()).nonzero().squeeze(1)
        if len(look) == 0:
            return
        lane = look.to(points.x.device)
        images, owner, job = state["found"][lane], self.owner[look], self.job[look]
        logits = judge(self.model, images, self.search.name, owner)
        self.search.refute(state, lane)
        for one in sorted(set(job.tolist())):  # no point twice at a time, and low jobs first
            mine = ((job == one) & (self.first_breaker[owner] > one)).nonzero().squeeze(1)
            here = mine.to(lane.device)
            broken = points.learn(owner[mine], images[here], logits[here], self.number)
            self.first_breaker[owner[mine][broken]] = one

    def _keep(self, stay: Tensor) -> None:
        """Take all other lanes out."""
        index = stay.nonzero().squeeze(1)
        self.owner, self.job, self.spent = self.owner[index], self.job[index], self.spent[index]
        state = self.state if len(index) else {}
        self.state = {key: value[index.to(value.device)] for key, value in state.items()}


@dataclass
class Points:
    """What is known of each image: the worst version found so far, and which attack broke it.

    Attributes:
        x, y: images and labels.
        keys: a number for each image, from which its random numbers follow.
        ranking: classes by falling logit of the clean image.
        order: the order in which the search under way takes them for targets.
        adv: the worst version found so far.
        margin: its margin; positive where it is misclassified.
        clean_margin: that of the clean image.
        broken_by: number of the attack that broke the image, 0 if the clean one is misclassified,
            −1 while it stands. On the CPU.
        done: which jobs of the search under way are finished, ``(N, jobs)``. On the CPU.
        aim: the label that each image is to get; None where any mistake counts.
        lanes: the state of the search under way, with ``owner`` and ``job`` of each lane.
        most: how many lanes the search under way fills; 0 before it has begun.
    """

    x: Tensor
    y: Tensor
    keys: Tensor
    ranking: Tensor
    order: Tensor
    adv: Tensor
    margin: Tensor
    clean_margin: Tensor
    broken_by: Tensor
    done: Tensor
    aim: Tensor | None = None
    lanes: State = field(default_factory=dict)
    most: int = 0

    @classmethod
    def of(
        cls, model: Classifier, x: Tensor, y: Tensor, seed: int, aim: Tensor | None = None
    ) -> Points:
        """The clean images, as the model answers them."""
        numbers = torch.arange(len(x))

        def answer(rows: slice) -> Tensor:
            return judge(model, x[rows], "", numbers[rows])

        logits = torch.cat(list(in_batches(answer, len(x), _CLEAN_BATCH)))
        ranking = logits.argsort(dim=1, descending=True)
        return cls(
            x=x,
            y=y,
            keys=image_keys(seed, x),
            ranking=ranking,
            order=ranking,
            adv=x.clone(),
            margin=_lead(logits, y, aim),
            clean_margin=_lead(logits, y, aim),
            broken_by=torch.where(_reached(logits, y, aim), 0, -1).cpu(),
            done=torch.zeros(len(x), 0, dtype=torch.bool),
            aim=aim,
        )

    @property
    def alive(self) -> Tensor:
        """Which images stand. On the CPU."""
        return self.broken_by < 0

    def learn(self, who: Tensor, images: Tensor, logits: Tensor, number: int) -> Tensor:
        """Keep the worse of what is known and what attack ``number`` found.

        Args:
            who: the indices of the points; no point twice.
            images, logits: what was found for each, and the model's answer.
            number: of the attack.

        Returns:
            Which of the images are misclassified. On the CPU.
        """
        point = who.to(images.device)
        goal = (self.y[point], None if self.aim is None else self.aim[point])
        margins = _lead(logits, *goal)
        # The second condition is false for a margin of two infinite logits, which is NaN.
        broken = _reached(logits, *goal) & (margins >= 0)
        worse = broken | (margins > self.margin[point])
        self.adv[point] = torch.where(wide(worse, images), images, self.adv[point])
        self.margin[point] = torch.where(worse, margins, self.margin[point])
        broken = broken.cpu()
        self.broken_by[who[broken]] = number
        return broken

    def saved(self) -> State:
        """What ``restore`` needs to go on."""
        lanes = {f"lanes.{name}": value for name, value in self.lanes.items()}
        found = {name: getattr(self, name) for name in _SAVED}
        return lanes | found | {"most": torch.tensor(self.most), "order": self.order}

    def restore(self, saved: State) -> None:
        """Go on from what ``saved`` returned, for the same images; other entries are ignored."""
        for name in _SAVED:
            setattr(self, name, saved[name].to(getattr(self, name).device))
        self.most = int(saved["most"])
        self.order = saved.get("order", self.order).to(self.order.device)  # 0.5 had one order only
        lanes = [name.removeprefix("lanes.") for name in saved if name.startswith("lanes.")]
        self.lanes = {name: saved[f"lanes.{name}"] for name in lanes}


def mistaken(logits: Tensor, state: State) -> Tensor:
    """Whether an image is misclassified, or gets the label that the attack is to reach; also where
    logits are NaN, which the judge refuses."""
    return _reached(logits, state["y"], state.get("aim")) | logits.isnan().any(dim=1)


def _reached(logits: Tensor, y: Tensor, aim: Tensor | None) -> Tensor:
    label = logits.argmax(dim=1)
    return label != y if aim is None else label == aim


def _lead(logits: Tensor, y: Tensor, aim: Tensor | None) -> Tensor:
    """By how much an image is misclassified, or gets the label aimed at; at most 0 if it does
    not."""
    return margin(logits, y, "none") if aim is None else -margin(logits, aim, "none")


def judge(model: Classifier, images: Tensor, attack: str, who: Tensor) -> Tensor:
    """The model's own logits, in its own precision; NaN is refused.

    Where the two largest are equal but for the last bits, which change with the size of the batch,
    the image is judged alone. Logits in low precision (of a model under autocast, say) are
    converted to float32, so that any difference between them counts.

    Args:
        attack: the name that a message gives to the attack.
        who: the numbers that it gives to the images.
    """
    with torch.no_grad(), exact_float32():
        logits = _answers(model, images)
    bad = logits.isnan().any(dim=1)
    if bad.any():
        raise NanLogitsError(int(who[int(bad.nonzero()[0])]), attack)
    if logits.dtype in LOW_PRECISION:
        logits = logits.float()
    if len(images) == 1:
        return logits
    first, second = logits.topk(2, dim=1).values.unbind(dim=1)
    close = first - second <= 16 * torch.finfo(logits.dtype).eps * (first.abs() + second.abs())
    for i in close.nonzero().squeeze(1).tolist():
        logits[i] = judge(model, images[i : i + 1], attack, who[i : i + 1])[0]
    return logits


def _answers(model: Classifier, images: Tensor) -> Tensor:
    """The logits: of all images at once, or in smaller batches where there is no memory for so
    many.

    On a CUDA device batches have one of two sizes, since it takes longer to prepare for a new size
    than to compute it; the last one is filled up with copies of the first image.
    """
    size = len(images)
    if size > 1 and images.is_cuda and isinstance(model, nn.Module):
        small, large = _CUDA_BATCHES
        size = small if size <= small else large

    def answer(rows: slice) -> Tensor:
        part = images[rows]
        more = images[:1].expand(rows.stop - rows.start - len(part), *images.shape[1:])
        # Copies of both: a model may work in place, and answer in the same place each time.
        return model(torch.cat([part, more])).clone()

    return torch.cat(list(in_batches(answer, len(images), size)))[: len(images)]
