"""The named datasets, as values. Adding a dataset is adding an entry to ``SOURCES``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from mrboost.data.dataset import Defaults, Split, rank_in_class, to_split
from mrboost.data.formats import cifar, mnist_idx, mnist_npz, svhn


@dataclass(frozen=True)
class Source:
    """A named dataset: what it is, the sets of files it may come in, and how to read each."""

    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    sizes: tuple[int, int]
    defaults: Defaults
    # File names -> reader of their paths
    readers: dict[tuple[str, ...], Callable[..., tuple[Split, Split]]]
    # Where official files are downloaded from
    urls: tuple[str, ...] = ()
    # Of the official files, and of those in an unpacked archive, by path
    checksums: dict[str, str] = field(default_factory=dict)
    # Whether legitimate files with other checksums exist
    has_variants: bool = False


def _digits() -> tuple[Split, Split]:
    """scikit-learn's 8x8 scans; in each class every fifth image is a test image, for every seed."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    whole = to_split(digits.images / 16.0, digits.target, "digits")
    test = rank_in_class(whole.y) % 5 == 4
    return whole[~test], whole[test]


_DIGIT_NAMES = tuple("0123456789")
_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100 = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
    camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
    cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
    lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
    oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm"""
_COLOUR = Defaults(8 / 255, 2 / 255, "resnet18", epochs=100, padding=4, flip=True)
_TORONTO = "https://www.cs.toronto.edu/~kriz"
_STANFORD = "http://ufldl.stanford.edu/housenumbers"
_IDX_KINDS = ("images-idx3-ubyte", "labels-idx1-ubyte")
_IDX = tuple(f"{part}-{kind}" for part in ("train", "t10k") for kind in _IDX_KINDS)
_IDX_GZ = tuple(f"{name}.gz" for name in _IDX)
_BATCHES = [f"data_batch_{i}" for i in range(1, 6)]
_read_cifar10 = partial(cifar, train=_BATCHES, test=["test_batch"], labels="labels")
_read_cifar100 = partial(cifar, train=["train"], test=["test"], labels="fine_labels")

SOURCES: dict[str, Source] = {
    "digits": Source(
        (1, 8, 8),
        _DIGIT_NAMES,
        (1442, 355),
        Defaults(0.1, 0.025, "cnn-digits", 30, padding=0, flip=False),
        {(): _digits},
    ),
    "mnist": Source(
        (1, 28, 28),
        _DIGIT_NAMES,
        (60000, 10000),
        Defaults(0.3, 0.05, "cnn-mnist", 20, padding=0, flip=False),
        {("mnist.npz",): mnist_npz, _IDX: mnist_idx, _IDX_GZ: mnist_idx},
        ("https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz",),
        {"mnist.npz": "sha256:731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"},
        has_variants=True,
    ),
    "cifar10": Source(
        (3, 32, 32),
        tuple(_CIFAR10.split()),
        (50000, 10000),
        _COLOUR,
        {("cifar-10-python.tar.gz",): _read_cifar10, ("cifar-10-batches-py",): _read_cifar10},
        (f"{_TORONTO}/cifar-10-python.tar.gz",),
        {
            "cifar-10-python.tar.gz": "md5:c58f30108f718f92721af3b95e74349a",
            "cifar-10-batches-py/data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
            "cifar-10-batches-py/data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
            "cifar-10-batches-py/data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
            "cifar-10-batches-py/data_batch_4": "md5:634d18415352ddfa80567beed471001a",
            "cifar-10-batches-py/data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
            "cifar-10-batches-py/test_batch": "md5:40351d587109b95175f43aff81a1287e",
        },
    ),
    "cifar100": Source(
        (3, 32, 32),
        tuple(_CIFAR100.split()),
        (50000, 10000),
        _COLOUR,
        {("cifar-100-python.tar.gz",): _read_cifar100, ("cifar-100-python",): _read_cifar100},
        (f"{_TORONTO}/cifar-100-python.tar.gz",),
        {
            "cifar-100-python.tar.gz": "md5:eb9058c3a382ffc7106e4002c42a8d85",
            "cifar-100-python/train": "md5:16019d7e3df5f24257cddd939b257f8d",
            "cifar-100-python/test": "md5:f0ef6b0ae62326f3e7ffdfab6717acfc",
        },
    ),
    "svhn": Source(
        # No flip: a mirrored digit is another sign. The smaller step is the usual one for SVHN.
        (3, 32, 32),
        _DIGIT_NAMES,
        (73257, 26032),
        Defaults(8 / 255, 1 / 255, "resnet18", 100, padding=4, flip=False),
        {("train_32x32.mat", "test_32x32.mat"): svhn},
        (f"{_STANFORD}/train_32x32.mat", f"{_STANFORD}/test_32x32.mat"),
        {
            "train_32x32.mat": "md5:e26dedcc434d2e4c54c9b2d4a06d8373",
            "test_32x32.mat": "md5:eb5a983be6a315427106f1b164d9cef3",
        },
    ),
}
