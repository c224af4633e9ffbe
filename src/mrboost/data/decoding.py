"""One image file: its shape, as its header says, and its pixels, upright, opaque and resized."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from mrboost.errors import reason

if TYPE_CHECKING:
    from PIL.Image import Image

Background = Literal["white", "black"]
Pixels = NDArray[np.uint8]  # (1 or 3, H, W)
# Only these decoders: others that Pillow knows start programs (EPS) or are seldom used and tested.
FORMATS = ("PNG", "JPEG", "BMP", "WEBP")
GREY_MODES = ("1", "L", "LA")
# More than 8 bits: Pillow would clip, not rescale
DEEP_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")
MAX_PIXELS = 4096 * 4096
ORIENTATION = 0x0112  # the tag of EXIF
# By the tag's value from 2 on: how a camera's picture is made upright
UPRIGHT = (
    "FLIP_LEFT_RIGHT",
    "ROTATE_180",
    "FLIP_TOP_BOTTOM",
    "TRANSPOSE",
    "ROTATE_270",
    "TRANSVERSE",
    "ROTATE_90",
)


class UnusableError(Exception):
    """Why a file is no image that can be used: the end of a sentence that begins with its name."""


@dataclass(frozen=True)
class Decoder:
    """What becomes of an image file.

    Attributes:
        size: the shorter side is resized to it and the centre cut out, size x size; None: as it is.
        background: what transparent images are laid on.
        channels: 1 makes all images grey, 3 coloured; None: as they are.
    """

    size: int | None = None
    background: Background = "white"
    channels: int | None = None

    def shape(self, content: bytes) -> tuple[int, int, int]:
        """(channels, height, width) of the image, of whose file only the header is read."""
        with _opened(content) as image:
            width, height = image.size
            if self.size is not None:
                width = height = self.size
            elif _orientation(image) >= 5:  # it lies on its side
                width, height = height, width
            return self.channels or _channels(image), height, width

    def pixels(self, content: bytes) -> Pixels:
        """One channel for a grey image, red, green and blue for all others, if ``channels`` does
        not say which."""
        from PIL import Image, ImageOps

        with _opened(content) as image:
            kind = "L" if (self.channels or _channels(image)) == 1 else "RGB"
            turned = _orientation(image)
            if self.size is not None:
                image.draft(None, (4 * self.size, 4 * self.size))  # a JPEG, decoded smaller
            plain = image.convert(kind)
            if image.has_transparency_data:
                opacity = image.convert("RGBA").getchannel("A")
                plain = Image.new(kind, image.size, self.background)
                plain.paste(image.convert(kind), mask=opacity)
            if self.size is not None:
                bilinear = Image.Resampling.BILINEAR  # antialiased, where it makes smaller
                plain = ImageOps.fit(plain, (self.size, self.size), bilinear)
            if turned > 1:
                plain = plain.transpose(Image.Transpose[UPRIGHT[turned - 2]])
            pixels = np.asarray(plain)
            return pixels[None] if kind == "L" else pixels.transpose(2, 0, 1)


@contextmanager
def _opened(content: bytes) -> Iterator[Image]:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise UnusableError(f"has {image.width}x{image.height} pixels, too many")
            if image.mode in DEEP_MODES:
                raise UnusableError("has more than 8 bits per channel")
            yield image
    except UnusableError:
        raise
    except UnidentifiedImageError:
        kinds = ", ".join(FORMATS)
        raise UnusableError(f"cannot be read as an image (it is none of {kinds})") from None
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise UnusableError(f"cannot be read as an image ({reason(error)})") from error


def _channels(image: Image) -> int:
    return 1 if image.mode in GREY_MODES else 3


def _orientation(image: Image) -> int:
    """EXIF's, in 1 … 8; 1 where there is none, or none that can be read."""
    from PIL.Image import Exif

    exif = Exif()
    try:
        exif.load(image.info.get("exif", b""))
        found = exif.get(ORIENTATION, 1)
    except Exception:  # damaged EXIF beside sound pixels
        return 1
    return found if found in range(1, 9) else 1
