"""Split, Dataset, from_tensors and hold_out: what they guarantee and what they refuse."""

import numpy as np
import pytest
import torch

from mrboost.data import Dataset, Defaults, Split, from_tensors, hold_out
from mrboost.errors import InputError

DEFAULTS = Defaults(0.1, 0.025, "cnn-digits", 30, padding=0, flip=False)
X, Y = torch.rand(6, 3, 8, 8), torch.arange(6) % 3


def a_split(count=20, classes=2, dtype=torch.uint8, size=4):
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(0, 256, (count, 3, size, size), generator=generator)
    x = x.to(dtype) if dtype == torch.uint8 else x.to(dtype) / 255
    return Split(x, torch.arange(count) % classes)


def a_dataset(train, test=None, classes=("a", "b")):
    return Dataset("mine", train, train if test is None else test, classes, DEFAULTS)


def test_images_are_the_bytes_over_255():
    split = a_split()
    assert split.images().dtype == torch.float32
    torch.testing.assert_close(split.images() * 255, split.x.float())
    floats = a_split(dtype=torch.float32)
    assert torch.equal(floats.images(), floats.x)


def test_indexing_keeps_images_and_labels_together():
    split = a_split(10, classes=5)
    index = torch.tensor([7, 0, 3])
    for part, expected in ((split[index], index), (split[2:5], torch.arange(2, 5))):
        assert torch.equal(part.x, split.x[expected])
        assert torch.equal(part.y, expected % 5)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.zeros(3, 4, 4), Y[:3], r"shape \(3, 4, 4\)"),
        (torch.zeros(3, 1, 4, 4, dtype=torch.float64), Y[:3], "float64"),
        (torch.zeros(3, 1, 4, 4), Y[:3].int(), "int32"),
        (torch.zeros(3, 1, 4, 4), Y[:3, None], r"labels have shape \(3, 1\)"),
        (torch.zeros(3, 1, 4, 4), Y[:2], "3 images but 2 labels"),
    ],
)
def test_split_refuses_wrong_shapes_and_types(x, y, message):
    with pytest.raises(InputError, match=message):
        Split(x, y)


@pytest.mark.parametrize(
    ("value", "message"),
    [(float("nan"), "NaN"), (1.5, "rescale"), (-0.1, "rescale"), (float("inf"), "rescale")],
)
def test_dataset_refuses_pixels_outside_the_unit_interval(value, message):
    split = a_split(dtype=torch.float32)
    a_dataset(split)
    split.x[3, 1, 2, 2] = value
    with pytest.raises(InputError, match=message):
        a_dataset(split)


@pytest.mark.parametrize("label", [-1, 2])
def test_dataset_refuses_labels_out_of_range(label):
    split = a_split()
    split.y[4] = label
    with pytest.raises(InputError, match=rf"test: label {label} is out of range.*0\.\.1"):
        a_dataset(a_split(), split)


@pytest.mark.parametrize(
    ("train", "test", "classes", "message"),
    [
        (a_split(), a_split(size=5), "ab", r"\(3, 4, 4\) but test images are \(3, 5, 5\)"),
        (a_split(), a_split()[:0], "ab", r"mine test: images have shape \(0, 3, 4, 4\)"),
        (a_split(classes=1), None, "a", "at least two"),
    ],
)
def test_dataset_refuses_different_sizes_emptiness_and_a_single_class(
    train, test, classes, message
):
    with pytest.raises(InputError, match=message):
        a_dataset(train, test, tuple(classes))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_channel_stats_are_those_of_all_pixels(dtype):
    train = a_split(2500, dtype=dtype)  # more than are summed at a time
    train.x[:, 2] = 1
    mean, std = a_dataset(train).channel_stats()
    pixels = train.images().double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(torch.tensor(mean), pixels.mean(1).float())
    torch.testing.assert_close(torch.tensor(std[:2]), pixels.std(1, correction=0)[:2].float())
    assert std[2] == 1e-3  # a constant channel


# --- from_tensors


def test_tensors_of_the_users_own_become_a_dataset():
    dataset = from_tensors(X, Y, X[:4], Y[:4], eps=0.2, model="cnn-digits")
    assert dataset.classes == ("0", "1", "2")
    assert (dataset.num_classes, dataset.shape, len(dataset.test)) == (3, (3, 8, 8), 4)
    usual = dataset.defaults
    assert (usual.eps, usual.model, usual.padding) == (0.2, "cnn-digits", 1)


def test_arrays_as_they_come_from_a_file():
    """numpy's, with floats of 64 bits and labels of 8 or one-hot, as npz files have them."""
    wanted = from_tensors(X, Y, X, Y).fingerprint()
    for images in (X.numpy(), X.double(), X.double().numpy(), X.tolist()):
        for labels in (Y.numpy().astype("uint8"), Y.int(), torch.eye(3)[Y], Y.tolist()):
            assert from_tensors(images, labels, X, Y).fingerprint() == wanted
    grey = (X[:, 0] * 255).byte()
    found = from_tensors(grey.numpy(), Y[:, None], grey[:, None], Y)
    assert found.shape == (1, 8, 8)
    assert torch.equal(found.train.x, found.test.x)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.empty(6, 3, 8, 8, device="meta"), Y, "meta tensor"),
        (torch.zeros(6, 3, 8, 8).to_sparse(), Y, "sparse"),
        (torch.nested.nested_tensor([X[0]] * 6, layout=torch.jagged), Y, "nested"),
        (X * 1j, Y, "images are complex numbers"),
        (X, Y + 1j, "labels are complex numbers"),
        (torch.zeros(6, 3, 0, 8), Y, "they have no pixels"),
        (np.array([["a"] * 6]), Y, "cannot be read as an array of numbers"),
        ([[1.0], [1.0, 2.0]], Y, "cannot be read as an array"),
        (X.permute(0, 2, 3, 1), Y, r"shape \(6, 8, 8, 3\): put the channels first"),
        (X, Y.float(), "int64"),
        (X, torch.tensor([0, 1, 2, 3, 4, 10**9]), "label 1000000000 makes more than 100,000"),
        (X[:0], Y[:0], r"tensors train: images have shape \(0, 3, 8, 8\)"),
    ],
)
def test_what_is_no_dataset_is_refused(x, y, message):
    with pytest.raises(InputError, match=message) as error:
        from_tensors(x, y, X, Y)
    assert "\n" not in str(error.value)


def test_an_unknown_default_is_refused():
    with pytest.raises(InputError, match="unknown default 'epss': did you mean eps"):
        from_tensors(X, Y, X, Y, epss=0.1)


def test_the_fingerprint_is_of_the_content():
    x, y = torch.randint(0, 256, (6, 1, 4, 4), dtype=torch.uint8), torch.arange(6) % 2
    one = from_tensors(x, y, x, y).fingerprint()
    assert from_tensors(x.clone(), y.clone(), x, y).fingerprint() == one
    changed = x.clone()
    changed[3, 0, 2, 1] ^= 1
    assert from_tensors(changed, y, x, y).fingerprint() != one
    assert from_tensors(x, 1 - y, x, y).fingerprint() != one


# --- hold_out


def numbered(labels):
    """A split in which each image carries its own index."""
    y = torch.tensor(labels)
    return Split((torch.arange(len(y)) / len(y)).view(-1, 1, 1, 1), y)


def indices(split, total):
    return (split.x.flatten() * total).round().long().tolist()


@pytest.mark.parametrize("count", [0, 1, 7, 50, 99])
def test_hold_out_parts_are_disjoint_cover_and_keep_labels(count):
    train = numbered([i * i % 7 for i in range(100)])
    rest, validation = hold_out(train, count, seed=3)
    kept, held = indices(rest, 100), indices(validation, 100)
    assert len(held) == count
    assert sorted(kept + held) == list(range(100))
    assert validation.y.tolist() == [i * i % 7 for i in held]


@pytest.mark.parametrize("count", [3, 10, 33, 57])
def test_hold_out_gives_each_class_its_share_to_within_one_image(count):
    sizes = [50, 30, 15, 5]
    train = numbered([label for label, size in enumerate(sizes) for _ in range(size)])
    _, validation = hold_out(train, count, seed=0)
    for size, got in zip(sizes, validation.y.bincount(minlength=4).tolist(), strict=True):
        assert abs(got - size * count / 100) < 1


def test_hold_out_depends_on_the_seed_alone():
    train = numbered([i % 10 for i in range(200)])
    first = indices(hold_out(train, 50, seed=1)[1], 200)
    state = torch.manual_seed(99).get_state()
    assert indices(hold_out(train, 50, seed=1)[1], 200) == first
    assert indices(hold_out(train, 50, seed=2)[1], 200) != first
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("count", [-1, 10, 11])
def test_hold_out_leaves_something_to_train_on(count):
    with pytest.raises(InputError, match=f"cannot hold out {count} of 10"):
        hold_out(numbered([0, 1] * 5), count, seed=0)


@pytest.mark.parametrize("seed", range(5))
def test_hold_out_leaves_a_class_its_only_image(seed):
    rest, validation = hold_out(numbered([0, 1, 2, 3, 4, 5, 6, 7, *[8] * 6]), 2, seed)
    assert set(rest.y.tolist()) == set(range(9))
    assert validation.y.tolist() == [8, 8]
    # Where no class has two images, one of them loses its own
    assert len(hold_out(numbered([0, 1, 2, 3]), 1, seed)[1]) == 1
