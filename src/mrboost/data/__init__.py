"""Datasets of images as plain tensors.

    dataset = load("digits")                             # or "cifar10", "folder:~/pictures.zip", …
    train, validation = hold_out(dataset.train, 200, seed=0)
    batches = Batches(train, 128, device="cuda", augment=Augment(padding=4, flip=True))
    for x, y in batches.epoch(generator): ...            # float32 in [0, 1], int64, on the device

Images are kept as they come (uint8, or float32 in [0, 1]); normalisation belongs to the model, so
that an attack's eps always means the same thing.
"""

from mrboost.data.dataset import (
    Dataset,
    Defaults,
    Split,
    as_tensors,
    drawn,
    from_tensors,
    hold_out,
    validation_split,
)
from mrboost.data.external import Source, from_loader
from mrboost.data.loader import Augment, Batches, CutMix, Mixed
from mrboost.data.sources import defaults, describe, load, names

__all__ = ["Augment", "Batches", "CutMix", "Dataset", "Defaults", "Mixed", "Source", "Split"]
__all__ += ["as_tensors", "defaults", "describe", "drawn", "from_loader", "from_tensors"]
__all__ += ["hold_out", "load", "names", "validation_split"]
