"""More images than memory: what it costs to pack, load, read, train on and evaluate made images.

    python benchmarks/streaming.py --n 20000 --size 224
    python benchmarks/streaming.py --n 200000 --size 224 --out DIR
    python benchmarks/streaming.py --n 20000 --size 224 --train 150       # on a GPU: does it wait?

JPEG files of smooth noise lie in one tar archive, ten classes, a tenth of them for testing. Each
row is a process's work in turn: images a second, and the most anonymous memory (RssAnon of Linux)
above that of the process when it had imported the library. ``--train N`` makes N steps of
adversarial training (a ResNet-18 on a stem of stride 4, three attack steps) and prints the share of
the seconds in which they waited for images.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import mrboost  # isort: skip — before torch, as in the command
import numpy as np
import torch
from PIL import Image
from torch import nn

from mrboost import models, recipes
from mrboost.attacks import FGSM
from mrboost.data.loader import Batches
from mrboost.devices import make_fabric
from mrboost.recipes.config import resolve
from mrboost.training.fit import begin
from mrboost.training.step import Step

CLASSES = 10
KINDS = 256
"""Different images; the others are their copies under other names."""


@models.register("resnet18-large")
def resnet18_large(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """As ImageNet's ResNet-18: a stem brings the images to a quarter of their size."""
    channels, height, width = shape
    stem = nn.Conv2d(channels, 64, 7, stride=4, padding=3, bias=False)
    body = models.build("resnet18", (64, -(-height // 4), -(-width // 4)), classes)
    return nn.Sequential(stem, nn.BatchNorm2d(64), nn.ReLU(), body)


def make(archive: Path, count: int, size: int) -> None:
    """Write the archive, if it is not there."""
    if archive.exists():
        return
    random = np.random.default_rng(0)
    files = []
    for _ in range(min(KINDS, count)):
        coarse = Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8))
        content = io.BytesIO()
        coarse.resize((size, size), Image.Resampling.BICUBIC).save(content, "JPEG", quality=90)
        files.append(content.getvalue())
    partial = archive.with_suffix(".partial")
    with tarfile.open(partial, "w") as tar:
        for number in range(count):
            split = "test" if number % 10 == 9 else "train"
            info = tarfile.TarInfo(f"{split}/{number // 10 % CLASSES}/{number:07}.jpg")
            content = files[number % len(files)]
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    partial.rename(archive)


def anonymous() -> float:
    """This process's anonymous memory, in MiB."""
    status = Path("/proc/self/status").read_text("utf-8")
    found = re.search(r"RssAnon:\s*(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


@contextmanager
def row(name: str, images: int, idle: float) -> Iterator[dict[str, Any]]:
    """Print what the block has cost; what it adds to the dictionary is printed too."""
    most, done = anonymous(), threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.02):
            most = max(most, anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    notes: dict[str, Any] = {}
    began = time.perf_counter()
    try:
        yield notes
    finally:
        seconds = time.perf_counter() - began
        done.set()
        watcher.join()
    figures = f"{seconds:9.1f} {images / seconds:10.0f} {max(0, most - idle):12.0f}"
    print(f"{name:<10}{figures}  {', '.join(f'{k} {v}' for k, v in notes.items())}", flush=True)


def measure(options: argparse.Namespace) -> None:
    """All rows, in this process."""
    fabric = make_fabric(options.device)
    torch.zeros(1, device=fabric.device)
    idle = anonymous()
    name = f"folder:{options.out / _archive(options)}"
    print(f"{options.n:,} images of {options.size} x {options.size}, {fabric.device}")
    print("what        seconds   images/s  MiB in memory")
    with row("pack", options.n, idle):
        dataset = mrboost.data.load(name)
    del dataset
    with row("load", options.n, idle):
        dataset = mrboost.data.load(name)
    batches = Batches(dataset.train, 128, device=fabric.device, room=options.room)
    generator = torch.Generator(fabric.device).manual_seed(0)
    with row("read", len(dataset.train), idle) as notes:
        for x, _ in batches.epoch(generator):
            x.sum().item()
        notes["streamed"] = batches.streamed
    config = resolve(recipes.AT_MCE, dataset, model="resnet18-large", steps=3)
    network = models.build(config.model, dataset.shape, dataset.num_classes)
    if options.train:
        step = Step(begin(network, config, fabric), [], config, fabric, dataset.train[:8].images())
        batches.waited = 0.0
        shown = step.begin(0, options.train)
        with row("train", 128 * options.train, idle) as notes:
            began = time.perf_counter()
            for x, y in islice(batches.epoch(shown), options.train):
                step(x, y, 0.1)
            step.is_finite()
            share = batches.waited / (time.perf_counter() - began)
            notes["waited for images"] = f"{share:.1%}"
    test = dataset.test[: options.evaluate]
    network = network.to(fabric.device).eval()
    with row("evaluate", len(test), idle):
        mrboost.evaluate(network, test, attack=FGSM(4 / 255), check=False, batch_size=16)


def _archive(options: argparse.Namespace) -> str:
    return f"made-{options.n}-{options.size}.tar"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--n", type=int, default=20000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--out", type=Path, help="for the archive and the packed images")
    parser.add_argument("--train", type=int, default=0, metavar="STEPS")
    parser.add_argument("--evaluate", type=int, default=100, metavar="N", help="test images")
    parser.add_argument("--room", type=int, help="bytes of the device that images may take")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options)
        return
    with tempfile.TemporaryDirectory() as temporary:
        options.out = options.out or Path(temporary)
        options.out.mkdir(parents=True, exist_ok=True)
        make(options.out / _archive(options), options.n, options.size)
        cache = {"XDG_CACHE_HOME": str(options.out / "cache")}
        command = [sys.executable, __file__, *sys.argv[1:], "--measure", "--out", str(options.out)]
        subprocess.run(command, check=True, env=os.environ | cache)


if __name__ == "__main__":
    main()
