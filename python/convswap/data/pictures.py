"""Read image files by Pillow, and resize and crop them."""

from __future__ import annotations

import io
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from convswap.errors import ConvswapError, unreadable

if TYPE_CHECKING:
    from PIL.Image import Image

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
# Pillow's formats of these files. For others, such as EPS, Pillow runs a program, whatever the file's name.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
# Pillow's modes by the number of channels: grey and colour.
PICTURE_MODES = {1: "L", 3: "RGB"}
# Pillow's modes with at most 8 bits per channel. Pillow converts only these to grey and colour.
_EIGHT_BITS = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "La", "RGBa")


def read_picture(source: str | PathLike[str] | bytes, name: str, mode: str, *, rotates: bool = True) -> Image:
    """Return the image in `source`, a path or the content of a file, in Pillow's `mode` "L" or "RGB".

    An alpha channel is dropped, and the colours stay as stored. With `rotates`, the image is rotated by its
    EXIF orientation, as viewers show it. `name` is the image's name in errors.

    Raises:
        ConvswapError: the image cannot be read, or has more than 8 bits per channel.
    """
    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError:
        raise ConvswapError("images are read by Pillow, which is missing: pip install pillow") from None
    try:
        file = io.BytesIO(source) if isinstance(source, bytes) else source
        with Image.open(file, formats=_FORMATS) as opened_image:
            if opened_image.mode not in _EIGHT_BITS:
                raise ConvswapError(
                    f"image '{name}' has pixels of mode {opened_image.mode}; give images of 8 bits a "
                    "channel, or an .npz file"
                )
            image = ImageOps.exif_transpose(opened_image) if rotates else opened_image
            return image.convert(mode)
    except (ConvswapError, MemoryError):
        raise
    except Exception as error:  # Pillow's decoders raise errors of many classes.
        raise unreadable(name, error, "an image") from error


def resized(image: Image, size: tuple[int, int]) -> Image:
    """Return the image in another width and height, by bilinear interpolation with antialiasing."""
    from PIL import Image as pillow

    return image if image.size == size else image.resize(size, pillow.Resampling.BILINEAR)


def centre_of_resized(image: Image, shorter: int, width: int, height: int) -> Image:
    """Return the centre of `image` after its shorter side was resized to `shorter` pixels.

    The sizes are rounded as by torchvision's transforms Resize and CenterCrop.
    """
    longer = int(shorter * max(image.size) / min(image.size))
    size = (shorter, longer) if image.width <= image.height else (longer, shorter)
    image = resized(image, size)
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return image.crop((left, top, left + width, top + height))


def as_pixels(image: Image) -> npt.NDArray[np.uint8]:
    """Return the pixels of a grey or colour image, (channels, height, width)."""
    pixels = np.asarray(image)
    return pixels[np.newaxis] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
