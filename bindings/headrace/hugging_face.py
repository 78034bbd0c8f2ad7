"""Hugging Face datasets with a column of images.

Their package is optional: it is imported only once a dataset of theirs has come along.
"""

import io
from collections.abc import Sequence
from functools import cache
from typing import Any

from PIL import Image

_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}


def is_hugging_face(dataset: object) -> bool:
    """Whether it is one of the package `datasets`, of any kind."""
    return type(dataset).__module__.partition(".")[0] == "datasets"


class HuggingFaceSamples(Sequence[tuple[Any, Any]]):
    """(picture, label) for each row of a `datasets.Dataset`.

    Args:
        dataset: it must have no format and no transform of its own.
        image, label: names of columns.

    Raises:
        TypeError, ValueError: the dataset is of another kind or lacks a column.
    """

    def __init__(self, dataset: Any, image: str, label: str) -> None:
        import datasets

        if not isinstance(dataset, datasets.Dataset):
            raise TypeError(
                f"samples must be a datasets.Dataset, not {type(dataset).__name__}: take one "
                "split, and load it without streaming"
            )
        for name in (image, label):
            if name not in dataset.column_names:
                raise ValueError(
                    f"the dataset has no column {name!r}, but {', '.join(dataset.column_names)}: "
                    "name yours with image= and label="
                )
        if dataset.format["type"] is not None:
            raise ValueError(
                f"the dataset has the format {dataset.format['type']!r}, so that its pictures are "
                "none: pass dataset.with_format(None), and the transform to ImageDataset"
            )
        feature = dataset.features[image]
        if not isinstance(feature, datasets.Image) or not feature.decode:
            raise ValueError(
                f"the column {image!r} holds {feature}: make it one of pictures with "
                f"dataset.cast_column({image!r}, datasets.Image())"
            )
        self.dataset = dataset
        self.image = image
        self.label = label
        self._rows = dataset.select_columns([image, label])
        self._raw = self._rows.with_format("arrow")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        row = self._rows[index]
        return row[self.image], row[self.label]

    def problem(self) -> str | None:
        """Why its pictures or labels cannot be read natively, None if they can."""
        import datasets

        if type(self.dataset) is not datasets.Dataset:
            return "it is a subclass of datasets.Dataset"
        picture, label = self.dataset.features[self.image], self.dataset.features[self.label]
        if type(picture) is not datasets.Image:
            return f"its pictures are of the type {picture}"
        if picture.mode not in (None, "RGB"):
            return f"its pictures are converted to mode {picture.mode}"
        if getattr(label, "dtype", None) not in _INTEGERS:
            return f"its labels are of the type {label}"
        return None

    def look_up(self, places: list[int]) -> list[tuple[Any, Any]]:
        """(path or bytes, label) of rows; bytes are buffers within the dataset's own memory.

        Raises:
            TypeError: a row without a picture, a place that is no int, or a remote path.
        """
        if any(type(place) is not int or not 0 <= place < len(self) for place in places):
            raise TypeError("places must be ints within the dataset")
        table = self._raw[places]
        pictures, labels = table.column(self.image), table.column(self.label).to_pylist()
        return [(_content(picture), label) for picture, label in zip(pictures, labels, strict=True)]


def _content(picture: Any) -> Any:
    if not picture.is_valid:
        raise TypeError("a row has no picture")
    content = picture["bytes"]
    if content.is_valid:
        return content.as_buffer()
    path = picture["path"].as_py()
    if path is None or ":" in path:  # perhaps a URL
        raise TypeError("a picture has neither bytes nor a local path")
    return path


@cache
def applies_orientation() -> bool:
    """Whether the installed `datasets` turns pictures as their EXIF orientation says."""
    import datasets

    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    Image.new("RGB", (2, 1)).save(file, "JPEG", exif=exif)
    decoded = datasets.Image().decode_example({"path": None, "bytes": file.getvalue()})
    return bool(decoded.size == (1, 2))
