"""What samples depend on besides the dataset: settings of the whole process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from PIL import Image, ImageFile


@dataclass(frozen=True)
class ProcessSettings:
    """Pillow's settings and the working directory, as the process has them at some time.

    Attributes:
        load_truncated_images: Pillow pads what is missing of a file instead of raising.
        max_image_pixels: Pillow warns of larger images; None: never. (It may be a float too.)
        directory: where relative paths begin; None: not known.
    """

    load_truncated_images: bool
    max_image_pixels: int | None
    directory: str | None = None

    @classmethod
    def current(cls) -> "ProcessSettings":
        """The settings of now."""
        try:
            directory = os.getcwd()
        except OSError:  # it was removed
            directory = None
        return cls(ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS, directory)

    @property
    def pixel_limit(self) -> int:
        """Images of more pixels are Pillow's business."""
        no_limit = 2**63
        if self.max_image_pixels is None:
            return no_limit
        return max(0, int(min(self.max_image_pixels, no_limit)))

    @property
    def as_new(self) -> bool:
        """Whether a new process would have them."""
        return self == ProcessSettings(False, 1024**3 // 4 // 3, self.directory)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Gives the process these settings meanwhile, and torch's own default dtype and device.

        The directory stays: other threads may depend on it.
        """
        before, dtype = ProcessSettings.current(), torch.get_default_dtype()
        self._apply()
        torch.set_default_dtype(torch.float32)
        try:
            with torch.device("cpu"):
                yield
        finally:
            torch.set_default_dtype(dtype)
            before._apply()

    def _apply(self) -> None:
        ImageFile.LOAD_TRUNCATED_IMAGES = self.load_truncated_images
        Image.MAX_IMAGE_PIXELS = self.max_image_pixels
