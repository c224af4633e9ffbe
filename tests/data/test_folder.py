"""`folder:PATH`: the same images from a directory, a tar or a zip, and every way such
a tree can be wrong."""

import io
import os
import random
import stat
import struct
import tarfile
import zipfile
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from mrboost.data import archives, load
from mrboost.data.registry import SOURCES
from mrboost.errors import InputError


def write_zip(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, content in files.items():
            bundle.writestr(name, content)
    return path


@pytest.fixture(params=["tree", "tar", "tar.gz", "tar.bz2", "tar.xz", "zip"])
def store(request, make, tmp_path):
    """A function that stores {path: bytes} in one of the ways and gives the dataset's name."""

    def write(files):
        path = tmp_path / f"pictures.{request.param}"
        if request.param == "tree":
            make.tree(path, files)
        elif request.param == "zip":
            write_zip(path, files)
        else:
            make.tar(path, files, "w:" + request.param[4:])
        return f"folder:{path}"

    return write


def one_line(error):
    message = str(error.value)
    assert "\n" not in message
    return message


def pixels(content):
    return np.asarray(Image.open(io.BytesIO(content)))


def test_images_labels_and_order(store, make):
    files = make.pictures(classes=("dog", "cat", "ant"), per_class=3)
    names = list(files)
    random.Random(1).shuffle(names)
    dataset = load(store({name: files[name] for name in names}))
    assert dataset.classes == ("ant", "cat", "dog")
    assert dataset.shape == (3, 6, 5)
    assert dataset.defaults.padding == 0  # 6 // 8
    for part, split in (("train", dataset.train), ("test", dataset.test)):
        # Round the classes: 0.png of each, then 1.png of each, …
        expected = [f"{part}/{label}/{i}.png" for i in range(3) for label in dataset.classes]
        for name, x, y in zip(expected, split.x, split.y, strict=True):
            assert dataset.classes[y] == name.split("/")[1]
            assert torch.equal(x.permute(1, 2, 0), torch.from_numpy(pixels(files[name]).copy()))


def test_classes_of_different_sizes_keep_every_image(store, make):
    files = make.pictures(per_class=4)
    del files["train/cat/1.png"], files["train/cat/3.png"]
    train = load(store(files)).train
    assert train.y.tolist() == [0, 1, 0, 1, 1, 1]
    expected = [
        f"train/{name}.png" for name in ("cat/0", "dog/0", "cat/2", "dog/1", "dog/2", "dog/3")
    ]
    for x, name in zip(train.x, expected, strict=True):
        assert torch.equal(x.permute(1, 2, 0), torch.from_numpy(pixels(files[name]).copy()))


@pytest.mark.parametrize("suffix", ["png", "jpg", "jpeg", "bmp", "webp"])
def test_formats(make, tmp_path, suffix):
    files = {
        f"{split}/{label}/{i}.{suffix.upper() if i else suffix}": make.encoded(
            make.picture(i), suffix
        )
        for split in ("train", "test")
        for label in "ab"
        for i in range(2)
    }
    dataset = load(f"folder:{make.tree(tmp_path / 'tree', files)}")
    assert len(dataset.train) == 4
    assert torch.equal(
        dataset.train.x[0].permute(1, 2, 0),
        torch.from_numpy(pixels(files[f"train/a/0.{suffix}"]).copy()),
    )


def test_grey_images_have_one_channel_unless_one_is_coloured(make, tmp_path):
    grey = make.pictures(shape=(6, 5))
    dataset = load(f"folder:{make.tree(tmp_path / 'grey', grey)}")
    assert dataset.shape == (1, 6, 5)
    assert torch.equal(
        dataset.train.x[0, 0], torch.from_numpy(pixels(grey["train/cat/0.png"]).copy())
    )

    mixed = grey | {"test/dog/9.png": make.encoded(make.picture(3))}
    dataset = load(f"folder:{make.tree(tmp_path / 'mixed', mixed)}")
    assert dataset.shape == (3, 6, 5)
    for channel in dataset.train.x[0]:
        assert torch.equal(channel, torch.from_numpy(pixels(grey["train/cat/0.png"]).copy()))


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_a_validation_split_serves_as_test_only_when_there_is_none(store, make, name):
    files = make.pictures(splits=("train", name), per_class=2)
    assert len(load(store(files)).test) == 4
    files |= make.pictures(splits=("test",), per_class=1)
    assert len(load(store(files)).test) == 2


def test_what_is_not_an_image_is_ignored_and_a_top_folder_is_accepted(make, tmp_path):
    files = {f"./top/{name}": content for name, content in make.pictures().items()}
    extra = {
        "top/README.md": b"hello",
        "top/train/cat/._0.png": b"mac",
        "__MACOSX/train/cat/x.png": b"mac",
        "top/logo.png": b"not even an image",
    }
    assert len(load(f"folder:{make.tar(tmp_path / 'a.tgz', files | extra)}").train) == 6
    assert len(load(f"folder:{write_zip(tmp_path / 'a.zip', files | extra)}").train) == 6


def test_an_archive_of_many_jpegs(make, tmp_path):
    """Small pictures in a tar.xz, as mirrors of CIFAR-10 come: balanced, in the order of paths."""
    files = {
        f"cifar/{split}/{label}/{i:03d}.jpg": make.encoded(
            np.full((32, 32, 3), 20 * number + i, np.uint8), "jpg"
        )
        for split, count in (("train", 12), ("test", 3))
        for number, label in enumerate(SOURCES["cifar10"].classes)
        for i in range(count)
    }
    cifar = load(f"folder:{make.tar(tmp_path / 'cifar.tar.xz', files, 'w:xz')}")
    assert cifar.classes == SOURCES["cifar10"].classes
    assert (len(cifar.train), len(cifar.test), cifar.shape) == (120, 30, (3, 32, 32))
    assert cifar.train.y.tolist() == 12 * list(range(10))
    assert cifar.train.x[:, 0, 0, 0].tolist() == [20 * n + i for i in range(12) for n in range(10)]


# --- trees that are wrong


def test_images_of_mixed_sizes_are_named_with_both_sizes(store, make):
    files = make.pictures() | {"test/dog/1.png": make.encoded(make.picture(0, (9, 8, 3)))}
    with pytest.raises(
        InputError, match=r"test/dog/1\.png is 8x9 pixels but 5x6 is expected.*resize"
    ) as error:
        load(store(files))
    one_line(error)


@pytest.mark.parametrize("damage", ["truncated", "garbage", "empty"])
def test_an_unreadable_image_is_named(store, make, damage):
    good = make.encoded(make.picture(0, (64, 64, 3)))
    content = {"truncated": good[: len(good) // 2], "garbage": b"GIF89a not really", "empty": b""}[
        damage
    ]
    with pytest.raises(InputError, match=r"train/cat/1\.png cannot be read as an image") as error:
        load(store(make.pictures() | {"train/cat/1.png": content}))
    one_line(error)


def test_sixteen_bit_images_are_refused_rather_than_clipped(make, tmp_path):
    buffer = io.BytesIO()
    Image.fromarray(np.full((6, 5), 40000, np.uint16)).save(buffer, "PNG")
    files = make.pictures() | {"train/cat/0.png": buffer.getvalue()}
    with pytest.raises(InputError, match=r"train/cat/0\.png has more than 8 bits"):
        load(f"folder:{make.tree(tmp_path / 'tree', files)}")


def test_the_split_with_other_classes_is_named(store, make):
    files = make.pictures(classes=("cat", "dog", "fox"), splits=("train",)) | make.pictures(
        classes=("cat", "emu", "dog"), splits=("test",)
    )
    with pytest.raises(InputError, match="only in train: fox; only in test: emu"):
        load(store(files))


def test_an_empty_class_is_named(make, tmp_path):
    tree = make.tree(tmp_path / "tree", make.pictures())
    for split in ("train", "test"):
        (tree / split / "yak").mkdir()
    with pytest.raises(InputError, match="no image of class yak in train"):
        load(f"folder:{tree}")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(tree, arcname=".")
    with pytest.raises(InputError, match="no image of class yak in train"):
        load(f"folder:{tmp_path / 'a.tar'}")


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: name.replace("train/", "").replace("test/", ""),  # no splits
        lambda name: name.replace("test", "train2"),  # no test split
        lambda name: name.replace("train", "training"),  # no train split
        lambda name: name.replace("cat/", "").replace("dog/", ""),  # no classes
        lambda name: name.replace("cat/", "cat/deep/"),  # too deep
    ],
)
def test_another_layout_gets_the_expected_one(store, make, rename):
    files = {rename(name): content for name, content in make.pictures().items()}
    with pytest.raises(
        InputError, match="expected train/CLASS/IMAGE and test/CLASS/IMAGE"
    ) as error:
        load(store(files))
    one_line(error)


def test_two_top_folders_are_not_one_dataset(make, tmp_path):
    files = {f"{name[:2]}/{name}": content for name, content in make.pictures().items()}
    with pytest.raises(InputError, match=r"expected train/CLASS/IMAGE.*found te/test/, tr/train/"):
        load(f"folder:{make.tar(tmp_path / 'a.tar', files, 'w:')}")


def test_no_such_path_and_no_path(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        load(f"folder:{tmp_path / 'nowhere'}")
    with pytest.raises(InputError, match="needs a path"):
        load("folder:")


# --- hostile archives


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    "name", ["../escaped.png", "/tmp/escaped.png", "train/cat/../../../escaped.png"]
)
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_paths_that_leave_the_archive_are_refused(make, tmp_path, name, kind):
    (tmp_path / "here").mkdir()
    path = tmp_path / "here" / f"a.{kind}"
    files = make.pictures() | {name: make.encoded(make.picture())}
    make.tar(path, files, "w:") if kind == "tar" else write_zip(path, files)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="points outside the archive") as error:
        load(f"folder:{path}")
    assert name in one_line(error)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE]
)
def test_links_and_devices_in_a_tar_are_refused(make, tmp_path, kind):
    files = make.pictures() | {"bad": special("train/cat/z.png", kind, "/etc/hostname")}
    with pytest.raises(InputError, match=r"train/cat/z\.png' is a link or a device"):
        load(f"folder:{make.tar(tmp_path / 'a.tar', files, 'w:')}")


def test_links_in_a_zip_are_refused(make, tmp_path):
    link = zipfile.ZipInfo("train/cat/z.png")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    path = write_zip(tmp_path / "a.zip", make.pictures())
    with zipfile.ZipFile(path, "a") as bundle:
        bundle.writestr(link, "/etc/hostname")
    with pytest.raises(InputError, match="is a link or a device"):
        load(f"folder:{path}")


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_a_member_that_unpacks_to_too_much_is_refused(make, tmp_path, kind):
    bomb = {"train/cat/bomb.png": bytes(65 * 2**20)}
    path = tmp_path / f"a.{kind}"
    make.tar(path, bomb) if kind == "tar.gz" else write_zip(path, bomb)
    assert path.stat().st_size < 200_000
    with pytest.raises(InputError, match=r"bomb\.png' unpacks to"):
        load(f"folder:{path}")


def test_a_sparse_file_of_gigabytes_is_refused_unread(make, tmp_path):
    tree = make.tree(tmp_path / "tree", make.pictures())
    with (tree / "train/cat/huge.png").open("wb") as file:
        file.truncate(5 * 2**30)
    with pytest.raises(InputError, match=r"huge\.png' unpacks to 5368709120 bytes"):
        load(f"folder:{tree}")


def test_a_pipe_among_the_images_is_refused(make, tmp_path):
    tree = make.tree(tmp_path / "tree", make.pictures())
    os.mkfifo(tree / "train/cat/9.png")
    with pytest.raises(InputError, match=r"9\.png is not a regular file"):
        load(f"folder:{tree}")


def test_small_files_that_decode_to_gigabytes_are_refused(make, tmp_path, monkeypatch):
    blank = make.encoded(np.zeros((500, 500, 3), np.uint8))
    files = {
        f"{split}/{c}/{i}.png": blank for split in ("train", "test") for c in "ab" for i in "12"
    }
    name = f"folder:{write_zip(tmp_path / 'a.zip', files)}"
    assert len(load(name).train) == 4
    monkeypatch.setattr(archives, "GIB", 2**20)
    with pytest.raises(InputError, match="200 times their files' size in memory"):
        load(name)
    monkeypatch.setattr(archives, "MAX_MEMORY", 2**20)
    with pytest.raises(InputError, match="of memory: make them smaller"):
        load(name)


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_archives_of_too_much_are_refused_wanted_or_not(make, tmp_path, monkeypatch, kind):
    files = make.pictures() | {f"docs/{i}.txt": bytes(100_000) for i in range(20)}
    path = tmp_path / f"a.{kind}"
    make.tar(path, files, "w:") if kind == "tar" else write_zip(path, files)
    assert len(load(f"folder:{path}").train) == 6
    monkeypatch.setattr(archives, "MAX_READ", 1_000_000)
    with pytest.raises(InputError, match="holds more than"):
        load(f"folder:{path}")
    monkeypatch.setattr(archives, "MAX_READ", 8 * 2**30)
    monkeypatch.setattr(archives, "MAX_FILES", 30)
    with pytest.raises(InputError, match="holds more than 30 files"):
        load(f"folder:{path}")


def test_a_zip_with_another_method_is_refused(make, tmp_path):
    """zipfile would unpack it without a limit."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as bundle:
        for name, content in make.pictures().items():
            bundle.writestr(name, content)
    with pytest.raises(InputError, match="is not stored or deflated"):
        load(f"folder:{path}")


def test_a_zip_that_lies_about_sizes_is_not_unpacked_further(make, tmp_path):
    content = bytearray(write_zip(tmp_path / "b.zip", {"train/a/1.png": bytes(10**7)}).read_bytes())
    content = content.replace((10**7).to_bytes(4, "little"), (100).to_bytes(4, "little"))
    (tmp_path / "b.zip").write_bytes(content)
    with pytest.raises(InputError, match="CRC"):
        load(f"folder:{tmp_path / 'b.zip'}")


@pytest.mark.parametrize("label", ["a\x1b[31m", "b\udcff"])
def test_class_names_that_would_reach_the_terminal_are_refused(make, tmp_path, label):
    files = make.pictures(classes=("cat", label))
    with pytest.raises(InputError, match="has control characters or is no UTF-8"):
        load(f"folder:{make.tar(tmp_path / 'a.tar', files)}")


def test_a_header_that_announces_gigabytes_is_refused_before_it_is_read(make, tmp_path):
    name = tarfile.TarInfo("././@LongLink")
    name.type, name.size = tarfile.GNUTYPE_LONGNAME, 5 * 2**30
    path = tmp_path / "a.tar"
    path.write_bytes(name.tobuf(tarfile.GNU_FORMAT) + bytes(10240))
    with pytest.raises(InputError, match=r"a header announces \d+ bytes"):
        load(f"folder:{path}")


def test_an_image_with_too_many_pixels_is_refused_before_it_is_decoded(make, tmp_path):
    header = struct.pack(">IIBBBBB", 5000, 5000, 8, 2, 0, 0, 0)

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    image = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )
    with pytest.raises(InputError, match=r"train/cat/0\.png has 5000x5000 pixels, too many"):
        load(f"folder:{make.tree(tmp_path / 'tree', make.pictures() | {'train/cat/0.png': image})}")


def test_a_file_named_png_is_decoded_as_an_image_format_we_allow_only(make, tmp_path):
    buffer = io.BytesIO()
    Image.fromarray(make.picture()).save(buffer, "TIFF")  # Pillow could read it
    files = make.pictures() | {"train/cat/0.png": buffer.getvalue()}
    with pytest.raises(InputError, match="cannot be read as an image"):
        load(f"folder:{make.tree(tmp_path / 'tree', files)}")


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tar.bz2", "tar.xz", "zip"])
@pytest.mark.parametrize("keep", [0, 0.2, 0.5, 0.9])
def test_truncated_archives_are_refused(make, tmp_path, kind, keep):
    path = tmp_path / f"a.{kind}"
    files = make.pictures(shape=(40, 40, 3))
    write_zip(path, files) if kind == "zip" else make.tar(path, files, f"w:{kind[4:]}")
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(InputError, match="truncated, damaged or not") as error:
        load(f"folder:{path}")
    one_line(error)


def test_a_tar_cut_between_two_members_is_refused(make, tmp_path):
    path = make.tar(tmp_path / "a.tar", make.pictures(), "w:")
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1].offset
    path.write_bytes(path.read_bytes()[:last])
    with pytest.raises(InputError, match="end-of-archive mark"):
        load(f"folder:{path}")


def test_a_changed_bit_in_a_compressed_stream_is_noticed(make, tmp_path):
    path = make.tar(tmp_path / "a.tar.gz", make.pictures())
    content = bytearray(path.read_bytes())
    content[-6] ^= 1  # the checksum at the end of the stream
    path.write_bytes(content)
    with pytest.raises(InputError, match="CRC"):
        load(f"folder:{path}")


def test_a_member_that_is_there_twice_is_refused(make, tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for files in (make.pictures(), make.pictures(classes=("cat",), splits=("train",))):
            for name, content in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    with pytest.raises(InputError, match=r"train/cat/0\.png is there twice"):
        load(f"folder:{path}")


def test_an_encrypted_zip_is_an_input_error(make, tmp_path):
    path = write_zip(tmp_path / "a.zip", make.pictures())
    content = bytearray(path.read_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = content.find(signature)
        content[start + flags] |= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="is encrypted"):
        load(f"folder:{path}")
