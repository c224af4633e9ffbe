"""The searches behind AutoAttack, and the queue that runs them.

A ``Search`` moves many images at once, each at its own iteration: its state is a dictionary of tensors whose first
dimension counts lanes, and ``step`` maps a state to the next. ``drain`` puts points into lanes, takes a point out as
soon as it is broken or has run all its jobs (targets and restarts, one after the other), and fills the lane with the
next point, so that batches stay full. Between two looks at the lanes nothing waits for the device.

Whatever a search offers is judged by the model itself in its own precision; only that counts. Every random number is a
function of the image and the seed, so what happens to a point does not depend on the others, on the number of lanes, or
on an interruption.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mrboost.devices import exact_float32
from mrboost.ensemble import Mixture
from mrboost.errors import InputError
from mrboost.fast import Engine
from mrboost.losses import margin
from mrboost.seeds import derive, hashed, hashed_uniform, image_keys
from mrboost.threat import Threat, ball

from .base import Classifier, attacked, check_batch, check_logits, keep_random_state

_JUDGED = 512
State = dict[str, Tensor]
"""Of each lane: ``x``, ``y``, the ``found`` image, whether it is a ``hit``, the evaluations so far ``t``, and more."""


@dataclass
class Points:
    """What is known of each point: the worst image found so far, its margin (> 0: misclassified), who broke it."""

    x: Tensor
    y: Tensor
    keys: Tensor
    ranking: Tensor
    """Classes by falling clean logit: the targets."""
    adv: Tensor
    margin: Tensor
    broken_by: Tensor
    """Number of the attack that broke the point, 0 for the clean image; −1 while it stands. On the CPU."""
    jobs_done: Tensor
    """Jobs finished of the attack under way. On the CPU."""
    first: int = 0
    """The number that messages give to the first image."""
    lanes: State = field(default_factory=dict)
    """The state of the search under way, and as ``owner`` the point of each lane."""

    @classmethod
    def of(cls, model: Classifier, x: Tensor, y: Tensor, seed: int, first: int = 0) -> Points:
        numbers = torch.arange(first, first + len(x))
        logits = torch.cat(
            [judge(model, x[part.to(x.device) - first], "no attack", part) for part in torch.split(numbers, _JUDGED)]
        )
        wrong = logits.argmax(dim=1) != y
        return cls(
            x=x,
            y=y,
            keys=image_keys(seed, x),
            ranking=logits.argsort(dim=1, descending=True),
            adv=x.clone(),
            margin=margin(logits, y, reduction="none"),
            broken_by=torch.where(wrong, 0, -1).cpu(),
            jobs_done=torch.zeros(len(x), dtype=torch.int64),
            first=first,
        )

    @property
    def alive(self) -> Tensor:
        return self.broken_by < 0

    def learn(self, who: Tensor, images: Tensor, logits: Tensor, number: int) -> Tensor:
        """Images offered by attack ``number`` for the points ``who``: keep the worst, and say which points are broken.

        A point is broken if it is misclassified by more than the last bits, which change with the size of the batch.
        """
        point = who.to(images.device)
        margins = margin(logits, self.y[point], reduction="none")
        worse = margins > self.margin[point]
        self.adv[point] = torch.where(wide(worse, images), images, self.adv[point])
        self.margin[point] = torch.where(worse, margins, self.margin[point])
        true = logits.gather(1, self.y[point, None]).squeeze(1)
        scale = (true.abs() + (true + margins).abs()).nan_to_num(0.0, 0.0, 0.0)  # of the two logits compared
        broken = (margins > 16 * torch.finfo(logits.dtype).eps * scale).cpu()
        self.broken_by[who[broken]] = number
        return broken

    def saved(self) -> State:
        """What ``restore`` needs to go on."""
        known = {name: getattr(self, name) for name in ("adv", "margin", "broken_by", "jobs_done")}
        return known | {f"lanes.{name}": value for name, value in self.lanes.items()}

    def restore(self, saved: State) -> None:
        for name, tensor in saved.items():
            if name.startswith("lanes."):
                self.lanes[name.removeprefix("lanes.")] = tensor
            elif hasattr(self, name):
                setattr(self, name, tensor.to(getattr(self, name).device))


@dataclass(frozen=True)
class Search(ABC):
    """An attack as a machine that moves many points at once."""

    eps: float = 8 / 255
    norm: str = "Linf"
    steps: int = field(default=100, kw_only=True)
    seed: int | None = field(default=0, kw_only=True)

    patient = False
    """Whether a hit must wait for the job's end (a randomised model may answer otherwise the next time)."""
    strides = (5, 10)
    """Steps between two looks at the lanes: on the CPU, and where looking means waiting for a device."""

    def __post_init__(self) -> None:
        ball(self.norm, self.eps)
        if self.steps < 1:
            raise InputError(f"{self.name} needs at least 1 step, got {self.steps}")

    @property
    @abstractmethod
    def name(self) -> str:
        """The name that tables use."""

    @property
    def threat(self) -> Threat:
        return ball(self.norm, self.eps)

    def jobs(self, classes: int) -> int:
        """How many runs a point gets: restarts and targets."""
        raise NotImplementedError

    def check(self, x: Tensor, classes: int) -> None:  # noqa: B027 — most searches work on anything
        """Refuse images or models that this search cannot work on, before anything is computed."""

    def evaluations(self) -> int:
        """Evaluations of the model in one job."""
        return self.steps

    def work(self, classes: int) -> int:
        """Evaluations of the model for one image that withstands."""
        return self.jobs(classes) * self.evaluations()

    @abstractmethod
    def begin(self, x: Tensor, y: Tensor, ranking: Tensor, keys: Tensor, job: Tensor) -> State:
        """Fresh lanes for points ``x``, each about to run its job number ``job``; ``keys`` belong to point and job."""

    @abstractmethod
    def step(self, model: Classifier, state: State) -> State:
        """One evaluation of every lane; waits for nothing on the device."""

    def advance(self, model: Classifier, state: State) -> State:
        """A step of the lanes that have evaluations left; the others keep what they found."""
        over, new = state["t"] >= self.evaluations(), self.step(model, state)
        return new | {key: torch.where(wide(over, new[key]), state[key], new[key]) for key in ("t", "hit", "found")}

    def refute(self, state: State, lanes: Tensor) -> None:
        """The model itself does not agree that these lanes were hits: go on."""
        state["hit"][lanes] = False

    def __call__(self, model: Classifier, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """The worst images found: of highest margin, misclassified where it succeeded."""
        return run(model, x, y, [self], seed_of(self.seed, generator)).adv.to(x.dtype)


@dataclass(frozen=True)
class Aimed(Search):
    """A search whose runs are aimed at the ``targets`` most likely false labels in turn, with ``restarts`` each."""

    targets: int = field(default=0, kw_only=True)
    restarts: int = field(default=1, kw_only=True)

    def jobs(self, classes: int) -> int:
        return self.restarts * (min(self.targets, classes - 1) or 1)

    def target(self, ranking: Tensor, job: Tensor) -> Tensor:
        return ranking.gather(1, (job // self.restarts + 1)[:, None]).squeeze(1)

    def start(self, x: Tensor, keys: Tensor, radius: Tensor | float) -> Tensor:
        """Images at distance ``radius`` in a random direction, but for the box."""
        noise = 2 * hashed_uniform(keys, x.shape[1:]).to(x.dtype) - 1
        if self.norm == "L2":
            noise = torch.erfinv(noise)  # normal, up to a factor
        length = self.threat.distance(noise, torch.zeros_like(noise))
        return (x + noise * wide(radius / length, x)).clamp(0, 1)


def seed_of(seed: int | None, generator: torch.Generator | None) -> int:
    if generator is not None:
        return int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
    return torch.Generator().seed() if seed is None else seed


def run(
    model: Classifier,
    x: Tensor,
    y: Tensor,
    searches: Sequence[Search],
    seed: int,
    *,
    lanes: int | None = None,
    first: int = 0,
    resume: Callable[[Points], int] = lambda _: 0,
    tell: Callable[[Points, int], object] = lambda *_: None,
    work: Callable[[int], object] = lambda _: None,
) -> Points:
    """Each search on the survivors of the last.

    ``first`` is the number that messages give to the first image. ``resume`` puts what an earlier run found into the
    points and gives the number of the search to go on with; ``tell`` hears of the points now and then; ``work`` counts
    evaluations of single images, those saved by a success included.
    """
    check_batch(x, y)
    with attacked(model), keep_random_state(x.device), torch.inference_mode(False):
        if isinstance(model, Mixture):
            raise InputError(
                f"{searches[0].name} stops at the first mistake, and a Mixture is right or wrong with a probability: "
                "use pgd-100, or --adaptive"
            )
        x, y = x.detach().clone(), y.clone()
        classes = check_logits(model, x, y)
        for search in searches:
            search.check(x, classes)
        if x.dtype in (torch.float16, torch.bfloat16):  # searched and judged in float32 around the model
            low, given = x.dtype, model
            model, x = (lambda images: given(images.to(low)).float()), x.float()
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
            points.jobs_done.zero_()
            tell(points, number + 1)
    return points


def drain(
    search: Search,
    model: Classifier,
    engine: Engine,
    points: Points,
    number: int,
    lanes: int | None,
    tell: Callable[[], object],
    count: Callable[[int, int], object],
) -> None:
    """Run ``search`` on all points that stand, as ``number`` in the order of attacks."""
    jobs, device = search.jobs(points.ranking.shape[1]), points.x.device
    each = search.evaluations()
    waiting = points.alive.nonzero().squeeze(1)
    count(each * int(points.jobs_done[waiting].sum()), 0)
    waiting = waiting[points.jobs_done[waiting] < jobs]
    if len(waiting) == 0:
        return
    most = lanes or engine.lanes
    most = -(-len(waiting) // -(-len(waiting) // most))  # as many rounds as needed, equally full
    owner, spent, state = waiting[:0], waiting[:0], None
    if points.lanes:  # an earlier run stopped here
        state = {name: value.to(device) for name, value in points.lanes.items()}
        owner, spent = state.pop("owner").cpu(), state["t"].cpu()
        waiting = waiting[~torch.isin(waiting, owner)]
        count(int(spent.sum()), 0)
    while len(waiting) or len(owner):
        arriving, waiting = waiting[: most - len(owner)], waiting[most - len(owner) :]
        if len(arriving):
            here, job = arriving.to(device), points.jobs_done[arriving].to(device)
            # One number for each search and job, so that no two of them share a stream.
            keys = hashed(points.keys[here], job + derive(0, search.name) % 2**32)
            fresh = search.begin(points.x[here], points.y[here], points.ranking[here], keys, job)
            state = fresh if state is None else {key: torch.cat([state[key], fresh[key]]) for key in fresh}
            owner, spent = torch.cat([owner, arriving]), torch.cat([spent, torch.zeros_like(arriving)])
        assert state is not None
        stride = search.strides[points.x.is_cuda]
        try:
            state = engine.advance(search.advance, state, stride, number)
        except torch.OutOfMemoryError:
            if most == 1 or lanes is not None:
                raise
            most //= 2
            count(-int(spent.sum()), 0)
            waiting, owner, spent, state = torch.cat([owner, waiting]), owner[:0], spent[:0], None  # they start again
            continue
        before, spent = spent, (spent + stride).clamp(max=each)
        count(int((spent - before).sum()), 0)
        ended = state["t"] >= each
        offered = ended if search.patient else ended | state["hit"]
        look = offered.cpu().nonzero().squeeze(1)
        if len(look) == 0:
            points.lanes = state | {"owner": owner}
            tell()
            continue
        lane, who = look.to(device), owner[look]
        images = state["found"][lane]
        broken = points.learn(who, images, judge(model, images, search.name, who + points.first), number)
        search.refute(state, lane)
        over = ended[lane].cpu()
        points.jobs_done[who[over]] += 1
        rest = each * (jobs - points.jobs_done[who[broken]]) - spent[look[broken]] * ~over[broken]
        count(int(rest.sum()), int(broken.sum()))
        again = who[over & ~broken]
        waiting = torch.cat([again[points.jobs_done[again] < jobs], waiting])
        stay = torch.ones(len(owner), dtype=torch.bool)
        stay[look[over | broken]] = False
        keep = stay.nonzero().squeeze(1)
        owner, spent = owner[keep], spent[keep]
        state = {key: value[keep.to(device)] for key, value in state.items()} if len(keep) else None
        points.lanes = {} if state is None else state | {"owner": owner}
        tell()
    points.lanes = {}


def judge(model: Classifier, images: Tensor, attack: str, who: Tensor) -> Tensor:
    """The model's own logits on images of these numbers; they must be numbers themselves."""
    try:
        with torch.no_grad(), exact_float32():
            logits = model(images.clone())  # a model may work in place
    except torch.OutOfMemoryError:
        if len(images) == 1:
            raise
        half = len(images) // 2
        return torch.cat([judge(model, images[part], attack, who[part]) for part in (slice(half), slice(half, None))])
    bad = logits.isnan().any(dim=1)
    if bad.any():
        number = int(who[int(bad.nonzero()[0])])
        raise InputError(
            f"the model's logits for image {number} under {attack} are NaN: its weights or the image are not finite"
        )
    return logits


def wide(values: Tensor, like: Tensor) -> Tensor:
    """One value per lane, shaped to broadcast against images."""
    return values.view(-1, *[1] * (like.ndim - 1))
