"""Augment against its definition image by image; Batches as a partition of the split."""

import pytest
import torch

from mrboost.data import Augment, Batches, CutMix, Split
from mrboost.errors import InputError


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def images(count=64, channels=3, height=7, width=5, dtype=torch.uint8):
    x = torch.randint(1, 256, (count, channels, height, width), generator=generator(9))
    return x.to(dtype) if dtype == torch.uint8 else x.to(dtype) / 255


def one_by_one(x, augment, seed):
    """Pad, crop at the drawn offsets, mirror: literally, for one image after the other."""
    top, left, mirrored = augment.draw(len(x), generator(seed))
    count, channels, height, width = x.shape
    pad = augment.padding
    out = []
    for i in range(count):
        padded = torch.zeros(channels, height + 2 * pad, width + 2 * pad, dtype=x.dtype)
        padded[:, pad : pad + height, pad : pad + width] = x[i]
        crop = padded[:, top[i] : top[i] + height, left[i] : left[i] + width]
        out.append(crop.flip(-1) if mirrored[i] else crop)
    return torch.stack(out)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("augment", [Augment(2, True), Augment(3, False), Augment(0, True)])
def test_augment_is_pad_crop_mirror_of_each_image(augment, dtype):
    x = images(dtype=dtype)
    out = augment(x, generator(4))
    assert out.dtype == dtype
    assert torch.equal(out, one_by_one(x, augment, 4))
    assert torch.equal(out, augment(x, generator(4)))
    assert not torch.equal(out, augment(x, generator(5)))


def test_augment_draws_every_offset_and_both_sides_evenly():
    top, left, mirrored = Augment(2, True).draw(5000, generator())
    for offset in (top, left):
        assert (offset.bincount(minlength=5) / 5000 - 0.2).abs().max() < 0.03
    assert offset.max() == 4
    assert abs(mirrored.float().mean() - 0.5) < 0.03
    assert abs(torch.corrcoef(torch.stack([top, left, mirrored]).float())[0, 1]) < 0.05


def test_augment_without_padding_or_flip_is_the_identity_and_draws_nothing():
    x, source = images(), generator()
    state = source.get_state()
    assert torch.equal(Augment(0, False)(x, source), x)
    assert torch.equal(source.get_state(), state)


def test_augment_leaves_its_input_alone():
    x = images()
    before = x.clone()
    Augment(2, True)(x, generator()).zero_()
    assert torch.equal(x, before)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [(lambda n: Augment(n, False), -1, "padding -1"), (CutMix, 0, r"in \(0, 1\], got 0")],
)
def test_what_is_no_padding_or_share_is_refused(part, value, message):
    with pytest.raises(InputError, match=message):
        part(value)


# --- CutMix


@pytest.mark.parametrize("probability", [1.0, 0.4])
def test_cutmix_pastes_a_rectangle_of_the_next_image(probability):
    """Literally, one image and one pixel after the other, from the same draws."""
    x, y = images(height=8, width=6, dtype=torch.float32), torch.arange(64)
    out, mixed = CutMix(probability)(x, y, generator(3))
    area, row, column, lot = torch.rand(4, 64, 1, generator=generator(3)).squeeze(2).tolist()
    changed = 0
    for i in range(64):
        expected, pasted = x[i].clone(), 0
        cut_height, cut_width = int(8 * area[i] ** 0.5), int(6 * area[i] ** 0.5)
        middle, centre = int(row[i] * 8), int(column[i] * 6)
        for r in range(max(0, middle - cut_height // 2), min(8, middle + cut_height // 2)):
            for c in range(max(0, centre - cut_width // 2), min(6, centre + cut_width // 2)):
                if lot[i] < probability:
                    expected[:, r, c] = x[(i - 1) % 64, :, r, c]
                    pasted += 1
        assert torch.equal(out[i], expected)
        assert mixed.share[i].item() == pytest.approx(1 - pasted / 48, abs=1e-6)
        assert mixed.second[i] == (i - 1) % 64
        changed += pasted > 0
    assert (40 if probability == 1 else 12) < changed < 64


# --- Batches


def numbered(count):
    """A split whose labels are the indices, and whose pixels show them too."""
    x = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(count, 1, 2, 2).contiguous()
    return Split(x, torch.arange(count))


@pytest.mark.parametrize(
    ("count", "batch_size"), [(20, 5), (23, 5), (21, 5), (3, 5), (1, 5), (4, 1)]
)
def test_an_epoch_has_each_image_once_with_its_own_label(count, batch_size):
    batches = Batches(numbered(count), batch_size)
    seen = list(batches.epoch(generator()))
    assert len(seen) == len(batches)
    x, y = torch.cat([x for x, _ in seen]), torch.cat([y for _, y in seen])
    assert x.dtype == torch.float32
    assert torch.equal((x[:, 0, 0, 0] * 255).round().long(), y)
    assert sorted(y.tolist()) == list(range(count))


@pytest.mark.parametrize(
    ("count", "batch_size", "least", "sizes"),
    [
        (21, 5, 2, [4, 4, 4, 4, 5]),
        (22, 5, 2, [4, 4, 5, 4, 5]),
        (20, 5, 2, [5, 5, 5, 5]),
        (5, 3, 4, [5]),
        (3, 5, 2, [3]),
        (1, 5, 2, [1]),
    ],
)
def test_no_batch_is_much_smaller_than_the_others(count, batch_size, least, sizes):
    batches = Batches(numbered(count), batch_size, least=least)
    assert [len(y) for _, y in batches.epoch(generator())] == sizes


def test_the_generator_determines_the_epoch():
    split = Split(images(50), torch.arange(50))
    batches = Batches(split, 8, augment=Augment(1, True))

    def epoch(source):
        seen = list(batches.epoch(source))
        return torch.cat([x for x, _ in seen]), torch.cat([y for _, y in seen])

    source, state = generator(1), torch.get_rng_state()
    first, second = epoch(source), epoch(source)
    again = epoch(generator(1))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[1], second[1])
    assert not torch.equal(first[0], split.images()[first[1]])  # augmented
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_batches_are_exact_and_changing_one_does_not_change_the_data(dtype):
    split = Split(images(6, dtype=dtype), torch.arange(6))
    kept = split.images().clone()
    batches = Batches(split, 4)
    for x, y in batches.epoch(generator()):
        assert torch.equal(x, kept[y])
        x.zero_()
        y.zero_()
    assert torch.equal(split.images(), kept)
    assert split.y.tolist() == list(range(6))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("draws_on", ["cpu", "cuda"])
def test_batches_on_a_gpu(draws_on):
    split = Split(images(20), torch.arange(20))
    batches = Batches(split, 8, device="cuda", augment=Augment(0, True))
    assert batches.split.x.dtype == torch.uint8
    for x, y in batches.epoch(torch.Generator(draws_on).manual_seed(0)):
        assert x.is_cuda
        plain = split.images()[y.cpu()]
        # A GPU divides by 255 through the reciprocal: one unit in the last place off
        right = [torch.isclose(x.cpu(), side, atol=1e-6) for side in (plain, plain.flip(-1))]
        assert torch.stack([side.flatten(1).all(1) for side in right]).any(0).all()
