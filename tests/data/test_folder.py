"""`folder:PATH`: the same images from a directory, a tar or a zip, and every way such
a tree can be wrong."""

import io
import os
import random
import re
import stat
import tarfile
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from mrboost.data import archives, folder, load
from samples import LARGE, encoded, pack, picture, pictures, png, refusal

KINDS = ["tar", "tar.gz", "tar.bz2", "tar.xz", "zip"]


@pytest.fixture(params=["tree", *KINDS])
def store(request, tmp_path):
    """A function that stores {path: bytes} in one of the ways and gives the dataset's name."""
    return lambda files: f"folder:{pack(tmp_path / f'pictures.{request.param}', files)}"


def decoded(content):
    pixels = np.asarray(Image.open(io.BytesIO(content))).copy()
    return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))


def test_images_labels_and_order(store):
    """Round the classes: the first image of each, then the second of each, …"""
    files = pictures(classes=("dog", "cat", "ant"), per_class=3)
    del files["train/cat/1.png"]
    names = list(files)
    random.Random(1).shuffle(names)
    dataset = load(store({name: files[name] for name in names}))
    assert dataset.classes == ("ant", "cat", "dog")
    assert dataset.shape == (3, 6, 5)
    assert dataset.defaults.padding == 0  # 6 // 8
    train = "ant/0 cat/0 dog/0 ant/1 cat/2 dog/1 ant/2 dog/2"
    test = "ant/0 cat/0 dog/0 ant/1 cat/1 dog/1 ant/2 cat/2 dog/2"
    for part, split, expected in (("train", dataset.train, train), ("test", dataset.test, test)):
        for name, x, y in zip(expected.split(), split.x, split.y, strict=True):
            assert dataset.classes[y] == name.split("/")[0]
            assert torch.equal(x, decoded(files[f"{part}/{name}.png"]))


@pytest.mark.parametrize("suffix", ["png", "jpg", "jpeg", "bmp", "webp"])
def test_formats(tmp_path, suffix):
    kind = {"jpg": "JPEG"}.get(suffix, suffix.upper())
    names = [f"{split}/{c}/0.{suffix}" for split in ("train", "test") for c in "ab"]
    names.append(f"train/a/1.{suffix.upper()}")
    files = {name: encoded(picture(i), kind) for i, name in enumerate(names)}
    dataset = load(f"folder:{pack(tmp_path / 'tree', files)}")
    assert len(dataset.train) == 3
    assert torch.equal(dataset.train.x[0], decoded(files[names[0]]))


def test_grey_images_have_one_channel_unless_one_is_coloured(tmp_path):
    grey = pictures(shape=(6, 5))
    first = decoded(grey["train/cat/0.png"])
    dataset = load(f"folder:{pack(tmp_path / 'grey', grey)}")
    assert dataset.shape == (1, 6, 5)
    assert torch.equal(dataset.train.x[0], first)

    mixed = grey | {"test/dog/9.png": encoded(picture(3))}
    dataset = load(f"folder:{pack(tmp_path / 'mixed', mixed)}")
    assert torch.equal(dataset.train.x[0], first.expand(3, 6, 5))


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_a_validation_split_serves_as_test_only_when_there_is_none(store, name):
    files = pictures(splits=("train", name), per_class=2)
    assert len(load(store(files)).test) == 4
    files |= pictures(splits=("test",), per_class=1)
    assert len(load(store(files)).test) == 2


def test_what_is_not_an_image_is_ignored(store):
    extra = {
        "README.md": b"hello",
        "train/cat/._0.png": b"mac",
        "__MACOSX/train/cat/x.png": b"mac",
        "logo.png": b"not even an image",
    }
    assert len(load(store(pictures() | extra)).train) == 6


@pytest.mark.parametrize("kind", KINDS)
def test_a_top_folder_is_accepted(tmp_path, kind):
    files = {f"./top/{name}": content for name, content in pictures().items()}
    assert len(load(f"folder:{pack(tmp_path / f'a.{kind}', files)}").train) == 6


# --- trees that are wrong

SIXTEEN_BITS = np.full((6, 5), 40000, np.uint16)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "test/dog/1.png",
            encoded(picture(0, (9, 8, 3))),
            r"test/dog/1\.png is 8x9 pixels but 5x6 is expected.*resize",
        ),
        ("train/cat/1.png", LARGE[: len(LARGE) // 2], r"train/cat/1\.png cannot be read as an"),
        ("train/cat/1.png", b"GIF89a not really", r"train/cat/1\.png cannot be read as an image"),
        ("train/cat/1.png", b"", r"train/cat/1\.png cannot be read as an image"),
        ("train/cat/1.png", encoded(picture(), "TIFF"), "cannot be read as an image"),
        ("train/cat/0.png", encoded(SIXTEEN_BITS), r"cat/0\.png has more than 8 bits"),
        ("train/cat/0.png", png(5000, 5000), r"cat/0\.png has 5000x5000 pixels, too many"),
        ("train/fox/0.png", encoded(picture()), "no image of class fox in test"),
        ("test/emu/0.png", encoded(picture()), "no image of class emu in train"),
        ("train/cat/deep/0.png", encoded(picture()), "cat/deep/0.png is not at split/class/image"),
    ],
)
def test_the_file_that_is_wrong_is_named(store, file, content, message):
    refusal(message, store(pictures() | {file: content}))


@pytest.mark.parametrize("kind", ["tree", "tar"])
def test_an_empty_class_is_named(tmp_path, kind):
    path = pack(tmp_path / "tree", pictures())
    for split in ("train", "test"):
        (path / split / "yak").mkdir()
    if kind == "tar":
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            tar.add(path, arcname=".")
        path = tmp_path / "a.tar"
    refusal("no image of class yak in train", f"folder:{path}")


@pytest.mark.parametrize(
    ("old", "new"),
    [(r"t\w+/", ""), ("test", "train2"), ("train", "training"), ("(cat|dog)/", "")],
    ids=["no splits", "no test split", "no train split", "no classes"],
)
def test_another_layout_gets_the_expected_one(store, old, new):
    files = {re.sub(old, new, name): content for name, content in pictures().items()}
    refusal("expected train/CLASS/IMAGE and test/CLASS/IMAGE", store(files))


def test_two_top_folders_are_not_one_dataset(tmp_path):
    files = {f"{name[:2]}/{name}": content for name, content in pictures().items()}
    message = "expected train/CLASS/IMAGE.*found te/test/, tr/train/"
    refusal(message, f"folder:{pack(tmp_path / 'a.tar', files)}")


def test_no_such_path_and_no_path(tmp_path):
    refusal("does not exist", f"folder:{tmp_path / 'nowhere'}")
    refusal("needs a path", "folder:")


# --- hostile archives


PLAIN = {"train/cat/x.png": encoded(picture())}
OUTSIDE = ["../escaped.png", "/tmp/escaped.png", "train/cat/../../../escaped.png"]
LINK = zipfile.ZipInfo("train/cat/z.png")
LINK.external_attr = (stat.S_IFLNK | 0o777) << 16


def special(kind):
    """A member of a tar that is no file."""
    info = tarfile.TarInfo("train/cat/z.png")
    info.type, info.linkname = kind, "/etc/hostname"
    return {info.name: info}


@pytest.mark.parametrize(
    ("kind", "files", "message"),
    [
        *(
            (kind, {name: b""}, f"{name}' points outside the archive")
            for name in OUTSIDE
            for kind in ("tar", "zip")
        ),
        ("tar", special(tarfile.SYMTYPE), r"train/cat/z\.png' is a link or a device"),
        ("tar", special(tarfile.LNKTYPE), r"train/cat/z\.png' is a link or a device"),
        ("tar", special(tarfile.CHRTYPE), r"train/cat/z\.png' is a link or a device"),
        ("tar", special(tarfile.FIFOTYPE), r"train/cat/z\.png' is a link or a device"),
        ("zip", {LINK: b"/etc/hostname"}, r"train/cat/z\.png' is a link or a device"),
        ("tar.gz", {"bomb.png": bytes(65 * 2**20)}, r"bomb\.png' unpacks to"),
        ("zip", {"bomb.png": bytes(65 * 2**20)}, r"bomb\.png' unpacks to"),
        ("tar", {"train/a\x1b[31m/0.png": b""}, "has control characters"),
        ("tar", {"train/b\udcff/0.png": b""}, "has control characters"),
    ],
)
def test_hostile_members_are_refused(tmp_path, kind, files, message):
    (tmp_path / "here").mkdir()
    path = pack(tmp_path / "here" / f"a.{kind}", PLAIN | files)
    assert path.stat().st_size < 200_000
    before = sorted(tmp_path.rglob("*"))
    refusal(message, f"folder:{path}")
    assert sorted(tmp_path.rglob("*")) == before


def test_files_of_a_tree_that_would_take_for_ever_are_refused_unread(tmp_path):
    tree = pack(tmp_path / "tree", pictures())
    with (tree / "train/cat/huge.png").open("wb") as file:
        file.truncate(5 * 2**30)  # sparse
    refusal(r"huge\.png' unpacks to 5368709120 bytes", f"folder:{tree}")
    (tree / "train/cat/huge.png").unlink()
    os.mkfifo(tree / "train/cat/9.png")
    refusal(r"9\.png is not a regular file", f"folder:{tree}")


def test_small_files_that_decode_to_gigabytes_are_refused(tmp_path, monkeypatch):
    blank = encoded(np.zeros((500, 500, 3), np.uint8))
    files = dict.fromkeys(pictures(per_class=2), blank)
    name = f"folder:{pack(tmp_path / 'a.zip', files)}"
    assert len(load(name).train) == 4
    monkeypatch.setattr(archives, "GIB", 2**20)
    refusal("200 times their files' size in memory", name)
    monkeypatch.setattr(archives, "MAX_MEMORY", 2**20)
    monkeypatch.setattr(folder, "_disk", lambda place: 0)  # nor is there room on a disk
    refusal("of memory: make them smaller", name)


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_archives_of_too_much_are_refused_wanted_or_not(tmp_path, monkeypatch, kind):
    files = pictures() | {f"docs/{i}.txt": bytes(100_000) for i in range(20)}
    name = f"folder:{pack(tmp_path / f'a.{kind}', files)}"
    assert len(load(name).train) == 6
    with monkeypatch.context() as limits:
        limits.setattr(archives, "MAX_READ", 1_000_000)
        refusal("holds more than", name)
    monkeypatch.setattr(archives, "MAX_FILES", 30)
    refusal("holds more than 30 files", name)


def test_a_zip_with_another_method_is_refused(tmp_path):
    """zipfile would unpack it without a limit."""
    path = pack(tmp_path / "a.zip", pictures(), zipfile.ZIP_BZIP2)
    refusal("is not stored or deflated", f"folder:{path}")


def edited(path, *changes):
    """The archive with other bytes in the place of some."""
    content = path.read_bytes()
    for old, new in changes:
        assert old in content
        content = content.replace(old, new)
    path.write_bytes(content)
    return f"folder:{path}"


def test_a_zip_that_lies_about_sizes_is_not_unpacked_further(tmp_path):
    path = pack(tmp_path / "b.zip", {"train/a/1.png": bytes(10**7)})
    refusal("CRC", edited(path, ((10**7).to_bytes(4, "little"), (100).to_bytes(4, "little"))))


def test_an_encrypted_zip_is_an_input_error(tmp_path):
    path = pack(tmp_path / "a.zip", pictures())
    local, central = b"PK\x03\x04\x14\x00", b"PK\x01\x02\x14\x03\x14\x00"
    changes = [(start + b"\x00", start + b"\x01") for start in (local, central)]
    refusal("is encrypted", edited(path, *changes))


def test_a_changed_bit_in_a_compressed_stream_is_noticed(tmp_path):
    path = pack(tmp_path / "a.tar.gz", pictures())
    end = path.read_bytes()[-8:]  # the checksum of the stream
    refusal("CRC", edited(path, (end, bytes([end[0] ^ 1]) + end[1:])))


def test_a_header_that_announces_gigabytes_is_refused_before_it_is_read(tmp_path):
    name = tarfile.TarInfo("././@LongLink")
    name.type, name.size = tarfile.GNUTYPE_LONGNAME, 5 * 2**30
    path = tmp_path / "a.tar"
    path.write_bytes(name.tobuf(tarfile.GNU_FORMAT) + bytes(10240))
    refusal(r"a header announces \d+ bytes", f"folder:{path}")


@pytest.mark.parametrize("kind", KINDS)
def test_truncated_archives_are_refused(tmp_path, kind):
    path = pack(tmp_path / f"a.{kind}", pictures(shape=(40, 40, 3)))
    content = path.read_bytes()
    for keep in (0.9, 0.5, 0.2, 0):
        path.write_bytes(content[: int(keep * len(content))])
        refusal("truncated, damaged or not", f"folder:{path}")


def test_a_tar_cut_between_two_members_is_refused(tmp_path):
    path = pack(tmp_path / "a.tar", pictures())
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1].offset
    path.write_bytes(path.read_bytes()[:last])
    refusal("end-of-archive mark", f"folder:{path}")


def test_a_member_that_is_there_twice_is_refused(tmp_path):
    path = pack(tmp_path / "a.tar", pictures())
    with tarfile.open(path, "a") as tar:
        tar.addfile(tarfile.TarInfo("train/cat/0.png"))
    refusal(r"train/cat/0\.png is there twice", f"folder:{path}")


# --- what is made of the images


def photo(width, height, orientation=None, quality=95):
    """A JPEG whose colours say where they are: red grows to the right, green downwards."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0] = np.linspace(0, 255, width)[None, :]
    pixels[..., 1] = np.linspace(0, 255, height)[:, None]
    image, buffer, exif = Image.fromarray(pixels), io.BytesIO(), Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
        stored = {6: Image.Transpose.ROTATE_90, 3: Image.Transpose.ROTATE_180}[orientation]
        image = image.transpose(stored)
    image.save(buffer, "JPEG", quality=quality, exif=exif)
    return buffer.getvalue()


@pytest.mark.parametrize("suffix", ["tree", "zip"])
def test_photos_train_upright(tmp_path, suffix):
    """What a camera stores on its side, with an EXIF tag that says so, is turned."""
    upright = photo(24, 16)
    files = {f"{split}/{c}/0.jpg": upright for split in ("train", "test") for c in "ab"}
    files |= {"train/a/1.jpg": photo(24, 16, 6), "train/b/1.jpg": photo(24, 16, 3)}
    assert Image.open(io.BytesIO(files["train/a/1.jpg"])).size == (16, 24)
    train = load(f"folder:{pack(tmp_path / f'a.{suffix}', files)}").train
    assert train.x.shape == (4, 3, 16, 24)
    for image in train.x[1:]:
        assert (image.int() - train.x[0].int()).abs().max() <= 6  # JPEG rounds


def test_transparency_lies_on_the_background(tmp_path):
    clear = np.zeros((4, 4, 4), np.uint8)
    clear[:, 2:] = (200, 100, 50, 255)
    palette = Image.fromarray(np.array([[0, 1]], np.uint8), "P").resize((4, 4), 0)
    palette.putpalette([9, 9, 9, 200, 100, 50])
    buffer = io.BytesIO()
    palette.save(buffer, "PNG", transparency=0)
    names = [f"{split}/{c}/0.png" for split in ("train", "test") for c in "ab"]
    path = pack(
        tmp_path / "a", dict.fromkeys(names, encoded(clear)) | {names[1]: buffer.getvalue()}
    )
    for given, value in (("", 255), ("?background=black", 0)):
        for image in load(f"folder:{path}{given}").train.x:
            assert (image[:, :, :2] == value).all()
            assert image[:, 0, 3].tolist() == [200, 100, 50]
    refusal("background is white or black, got 'pink'", f"folder:{path}?background=pink")


def test_size_resizes_the_shorter_side_and_cuts_out_the_centre(tmp_path):
    files = {f"{split}/{c}/0.jpg": photo(96, 48) for split in ("train", "test") for c in "ab"}
    files["train/a/1.png"] = encoded(np.tile(np.array([[[0], [255]]], np.uint8), (16, 32, 3)))
    name = f"folder:{pack(tmp_path / 'a', files)}?size=12"
    dataset = load(name)
    assert dataset.shape == (3, 12, 12)
    red, green, _ = dataset.train.x[0].float()
    whole = torch.linspace(0, 255, 96)[24:72].view(12, 4).mean(1)  # the middle half of the width
    assert (red.mean(0) - whole).abs().max() < 4
    assert (green.mean(1) - torch.linspace(0, 255, 48).view(12, 4).mean(1)).abs().max() < 8
    assert ((dataset.train.x[2].float() - 127.5).abs() < 64).all()  # stripes: antialiased to grey
    assert dataset.fingerprint() == load(name).fingerprint()
    refusal("train/a/1.png is 64x16 pixels but 96x48 is expected.*--size 64", name[:-8])


@pytest.mark.parametrize("top", ["train/", "", "top/train/"])
def test_a_share_of_each_class_is_for_testing(store, top):
    files = pictures(classes=("cat", "dog"), per_class=10, splits=("train",))
    files |= {f"train/ant/{i}.png": encoded(picture(i)) for i in range(3)}
    files = {name.replace("train/", top): content for name, content in files.items()}
    name = store(files)
    if name.endswith("tree") and top == "top/train/":
        pytest.skip("a top folder is of archives")
    shared = load(f"{name}?test-share=0.2")
    assert shared.test.y.bincount().tolist() == [1, 2, 2]
    assert shared.train.y.bincount().tolist() == [2, 8, 8]
    images = {image.numpy().tobytes() for split in (shared.train, shared.test) for image in split.x}
    assert len(images) == 23
    again = load(f"{name}?test-share=0.2")
    assert torch.equal(again.test.x, shared.test.x)
    if top == "train/":
        refusal("--test-share 0.2", name)


def test_options_of_a_folder_that_are_wrong(tmp_path):
    name = f"folder:{pack(tmp_path / 'a', pictures())}"
    refusal("has a folder test: leave test-share out", f"{name}?test-share=0.5")
    refusal("did you mean size", f"{name}?sise=3")
    refusal("size must be a number", f"{name}?size=big")
    refusal("size must be 1 to", f"{name}?size=0")
    refusal("test-share must be", f"{name}?test-share=1")
    single = pictures(splits=("train",), per_class=1)
    refusal("class cat has one image", f"folder:{pack(tmp_path / 'b', single)}?test-share=0.5")


def test_all_files_that_are_wrong_are_in_one_message(tmp_path):
    files = pictures(per_class=6)
    files |= {f"train/cat/{i}.png": LARGE[: len(LARGE) // 2] for i in range(2)}
    files |= {f"test/dog/{i}.png": encoded(picture(0, (9, 8, 3))) for i in range(3)}
    files |= {"train/dog/5.png": b"", "logo.png": b"none of the data"}
    message = refusal("more, 6 in all", f"folder:{pack(tmp_path / 'a.zip', files)}")
    assert message.count(".png") == 3
