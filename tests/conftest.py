"""What several test files share: small data, and one real training on digits."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import mrboost
from commands import SEARCHES, SMOKE, write_pictures
from mrboost import attacks, losses, models, recipes, studies
from mrboost.attacks import APGD, FAB, AutoAttack, Search, Square, autoattack
from mrboost.cli.main import main
from mrboost.data import Dataset, Defaults, Split
from mrboost.recipes import samplers

# The networks here are tiny: a second thread gains little, and when another process holds a core
# the two spend their time waiting for each other.
torch.set_num_threads(1)


@pytest.fixture(params=SEARCHES.values(), ids=SEARCHES)
def search(request: pytest.FixtureRequest) -> Search:
    """Every search, small."""
    found: Search = request.param
    return found


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return mrboost.data.load("digits")


@pytest.fixture(scope="session")
def images(digits: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    return digits.test.images(), digits.test.y


@pytest.fixture(scope="session")
def trained(digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder: adversarial training with MCE on digits, long enough to be robust.
    Read it, don't write it."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    mrboost.boost("at-mce", digits, epochs=8, out=folder, device="cpu")
    return folder


@pytest.fixture(scope="session")
def model(trained: Path) -> mrboost.Ensemble:
    return mrboost.load(trained)


@pytest.fixture(scope="session")
def undefended(digits: Dataset) -> torch.nn.Module:
    """An ordinary network on digits: accurate, and easy to fool."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = mrboost.models.build("cnn-digits", digits.shape, 10)
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    for _ in range(8):
        for x, y in zip(digits.train.images().split(128), digits.train.y.split(128), strict=True):
            optimizer.zero_grad()
            mrboost.losses.cross_entropy(network(x), y).backward()
            optimizer.step()
    return network.eval()


@pytest.fixture(scope="session")
def batch(digits: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    return digits.test.images()[:64], digits.test.y[:64]


@pytest.fixture(scope="session")
def tiny() -> Dataset:
    """Forty-eight noisy images of three easy classes: an epoch takes milliseconds."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(48) % 3
    x = (0.25 * torch.rand(48, 1, 8, 8, generator=generator) + 0.25 * y.view(-1, 1, 1, 1)).clamp(
        0, 1
    )
    defaults = Defaults(
        eps=0.05, step_size=0.0125, model="cnn-digits", epochs=2, padding=1, flip=True
    )
    return Dataset("tiny", Split(x[:36], y[:36]), Split(x[36:], y[36:]), ("a", "b", "c"), defaults)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options of a command that trains on a folder of very few images: an
    epoch takes milliseconds."""
    folder = tmp_path_factory.mktemp("data") / "pictures"
    write_pictures(folder, "abc")
    return ["--data", f"folder:{folder}", "--model", "cnn-digits"]


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the trained run that a test may change."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def forgotten() -> Iterator[None]:
    """What a test registers is forgotten after it."""
    registries: list[dict] = [
        recipes.methods._BY_NAME,
        samplers.SAMPLERS,
        losses.LOSSES,
        attacks.registry._NAMES,
        models.registry._REGISTRY,
    ]
    before = [dict(registry) for registry in registries]
    yield
    for registry, content in zip(registries, before, strict=True):
        registry.clear()
        registry.update(content)


@pytest.fixture
def small_autoattack(monkeypatch: pytest.MonkeyPatch) -> AutoAttack:
    parts = (APGD(0.15, steps=10), FAB(0.15, steps=5, targets=2), Square(0.15, steps=30))
    monkeypatch.setitem(autoattack.VERSIONS, "small", lambda eps, norm: parts)
    return AutoAttack(0.15, version="small")


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All studies at scale smoke."""
    out = tmp_path_factory.mktemp("studies")
    for name in studies.STUDIES:
        assert main(["study", name, *SMOKE, "--out", str(out)]) == 0, name
    return out
