"""Pictures and labels from lists, data frames and Hugging Face datasets."""

import io
import os
from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image
from torch.utils.data import Dataset
from torchvision.datasets.folder import pil_loader

from headrace.hugging_face import HuggingFaceSamples, is_hugging_face


class ImageDataset(Dataset[tuple[Any, Any]]):
    """Pictures with labels, from wherever they are; native in :class:`headrace.DataLoader`.

    Args:
        samples: one of

            - a sequence of (picture, label): the picture is the path of an image file (str or
              os.PathLike) or the bytes of one;
            - a data frame (pandas, polars): `image` names its column of such pictures, `label`
              that of labels. Its rows are copied;
            - a Hugging Face `datasets.Dataset`: `image` names its Image column. Pictures are what
              it gives, turned as their EXIF orientation says (torchvision's folders ignore that).
        transform: from an RGB picture, as a PIL image, to what the sample is to hold.
        image, label: names of columns; not used for sequences.

    Raises:
        TypeError, ValueError: `samples` is none of these, or lacks a column; the message says what
            to do.

    Indexing gives (picture, label). Every picture is converted to RGB, whatever its file's mode is.
    """

    def __init__(
        self,
        samples: Any,
        transform: Callable[[Image.Image], Any] | None = None,
        *,
        image: str = "image",
        label: str = "label",
    ) -> None:
        self.samples = _as_sequence(samples, image, label)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        content, label = self.samples[index]
        picture = open_as_rgb(content)
        return (picture if self.transform is None else self.transform(picture)), label


def open_as_rgb(content: Any) -> Any:
    """The RGB picture, a PIL image, that is in an image file, in its bytes, or in a PIL image."""
    if isinstance(content, (str, os.PathLike)):
        return pil_loader(content)
    if isinstance(content, Image.Image):
        return content.convert("RGB")
    with Image.open(io.BytesIO(content)) as picture:
        return picture.convert("RGB")


def _as_sequence(samples: Any, image: str, label: str) -> Sequence[tuple[Any, Any]]:
    if is_hugging_face(samples):
        return HuggingFaceSamples(samples, image, label)
    if hasattr(samples, "columns") and hasattr(samples, "__getitem__"):
        return list(zip(_column(samples, image), _column(samples, label), strict=True))
    if isinstance(samples, Sequence) and not isinstance(samples, (str, bytes)):
        return samples
    raise TypeError(
        "samples must be a sequence of (path or bytes, label), a data frame or a Hugging Face "
        f"dataset; got {type(samples).__name__}"
    )


def _column(frame: Any, name: str) -> list[Any]:
    if name not in frame.columns:
        names = ", ".join(map(str, frame.columns))
        raise ValueError(
            f"the data frame has no column {name!r}, but {names}: name yours with image= and label="
        )
    column = frame[name]
    values: list[Any] = column.tolist() if hasattr(column, "tolist") else column.to_list()
    return values
