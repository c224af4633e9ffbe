"""A DataLoader, or a dataset of torch's, as training data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, SubsetRandomSampler, TensorDataset
from torch.utils.data import Dataset as TorchDataset

import mrboost
from mrboost.data import Dataset, from_loader, from_tensors
from mrboost.errors import InputError


def to_tensor(image: Image.Image) -> Tensor:
    """torchvision's ToTensor."""
    return torch.from_numpy(np.array(image)[None]).float().div(255)


class Pictures(TorchDataset):
    """As torchvision's datasets are: images of PIL, a transform, ``classes``."""

    classes = ("a", "b", "c")

    def __init__(self, x: Tensor, y: Tensor, transform: object = to_tensor) -> None:
        self.x, self.y, self.transform = x, y, transform

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = Image.fromarray(self.x[index, 0].numpy())
        return self.transform(image), int(self.y[index])


@pytest.fixture
def bytes_() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (40, 1, 8, 8), generator=generator, dtype=torch.uint8)
    return x, torch.arange(40) % 3


def test_a_loader_is_the_dataset_of_its_tensors(bytes_: tuple[Tensor, Tensor]) -> None:
    x, y = bytes_
    expected = from_tensors(x[:30], y[:30], x[30:], y[30:])
    train, test = Pictures(x[:30], y[:30]), Pictures(x[30:], y[30:])
    loader = DataLoader(train, batch_size=7, shuffle=True, drop_last=True)
    for one in (loader, train, DataLoader(train, 16)):
        found = from_loader(one, test, eps=0.1)
        assert found.fingerprint() == expected.fingerprint()
        assert torch.equal(found.test.x, x[30:])
        assert found.train.x.dtype == torch.uint8
        assert found.classes == ("a", "b", "c")
        assert found.defaults.eps == 0.1


def test_floats_of_no_levels_stay_what_they_are(bytes_: tuple[Tensor, Tensor]) -> None:
    x, y = bytes_
    floats = x / 255
    floats[25] *= 0.999
    found = from_loader(DataLoader(TensorDataset(floats, y), 10), TensorDataset(x, y))
    assert torch.equal(found.train.x, floats)
    assert torch.equal(found.test.x, x)


def test_a_part_and_a_stream_are_read_as_they_come(bytes_: tuple[Tensor, Tensor]) -> None:
    x, y = bytes_

    class Stream(IterableDataset):
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            return zip(x, y, strict=True)

    whole = TensorDataset(x, y)
    assert torch.equal(from_loader(Stream(), whole).train.x, x)
    assert len(from_loader(Subset(whole, range(12)), whole).train) == 12
    drawn = DataLoader(whole, 4, sampler=SubsetRandomSampler(range(9)))
    assert sorted(from_loader(drawn, whole).train.y.tolist()) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_without_test_images_a_tenth_is_taken(bytes_: tuple[Tensor, Tensor]) -> None:
    x, y = bytes_
    found = from_loader(TensorDataset(x, y))
    assert (len(found.train), len(found.test)) == (36, 4)
    again = from_loader(DataLoader(TensorDataset(x, y), shuffle=True))
    assert again.fingerprint() == found.fingerprint()


def test_boost_takes_them(tiny: Dataset) -> None:
    options: dict = {"model": "cnn-digits", "epochs": 1, "eps": 0.05, "device": "cpu"}
    pairs = [TensorDataset(split.x, split.y) for split in (tiny.train, tiny.test)]
    loaders = (DataLoader(pairs[0], 5, shuffle=True), pairs[1])
    one = mrboost.boost("at", loaders, **options)
    tensors = from_tensors(tiny.train.x, tiny.train.y, tiny.test.x, tiny.test.y)
    two = mrboost.boost("at", tensors, **options)
    for mine, other in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert len(mrboost.boost("at", DataLoader(pairs[0], 5), **options)) == 1


def test_what_cannot_be_read_is_refused(bytes_: tuple[Tensor, Tensor]) -> None:
    x, y = bytes_
    large = TensorDataset(x, y)
    with pytest.raises(InputError, match=r"40 images take 2.38e-06 GiB, memory is 1e-06: make the"):
        from_loader(large, memory=1e-6)
    with pytest.raises(InputError, match=r"cannot be read .*ToTensor\(\)"):
        from_loader(Pictures(x, y, lambda image: image))
    with pytest.raises(InputError, match=r"pairs \(images, labels\), got list"):
        from_loader(DataLoader(TensorDataset(x), 5))
    with pytest.raises(InputError, match="the loader is empty"):
        from_loader(TensorDataset(x[:0], y[:0]))
    with pytest.raises(InputError, match=r"pixels span \[-1, 1\]: rescale them to \[0, 1\]"):
        from_loader(TensorDataset(x / 127.5 - 1, y))
