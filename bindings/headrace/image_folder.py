"""torchvision's ImageFolder, listed in C++, once for all processes of a machine."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torchvision.datasets
from torchvision.datasets.folder import IMG_EXTENSIONS, default_loader

from headrace._core import Error
from headrace.listing import Listing


class ImageFolder(torchvision.datasets.ImageFolder):
    """Takes the place of :class:`torchvision.datasets.ImageFolder`: the same classes, samples and
    order, found much faster.

    Directories are read by several threads. The listing is kept in ``$XDG_CACHE_HOME/headrace``
    (``~/.cache/headrace``) and used again as long as no directory of it has changed; processes that
    start at the same time (the ranks of a training) wait for the first to list.

    Args:
        root, transform, target_transform, loader, is_valid_file, allow_empty: as torchvision's.
            With `is_valid_file` torchvision itself lists.
        cache: False neither reads nor writes the kept listing.

    Raises:
        FileNotFoundError: as torchvision's.
    """

    def __init__(
        self,
        root: str | Path,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        loader: Callable[[str], Any] = default_loader,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
        *,
        cache: bool = True,
    ) -> None:
        self._listing: Listing | None = None
        if is_valid_file is None:
            self._listing = _list(root, allow_empty, cache)
        super().__init__(
            root, transform, target_transform, loader, is_valid_file, allow_empty=allow_empty
        )
        del self._listing

    # torchvision's constructor calls these two; what they say, it says when there is no listing.

    def find_classes(self, directory: str | Path) -> tuple[list[str], dict[str, int]]:
        """As torchvision's."""
        listing = getattr(self, "_listing", None)
        if listing is None:
            found: tuple[list[str], dict[str, int]] = super().find_classes(directory)
            return found
        classes = list(listing.classes)
        return classes, {name: label for label, name in enumerate(classes)}

    def make_dataset(
        self, directory: str | Path, class_to_idx: dict[str, int], *args: Any, **options: Any
    ) -> list[tuple[str, int]]:
        """As torchvision's."""
        listing: Listing | None = getattr(self, "_listing", None)
        if listing is None or list(class_to_idx) != listing.classes:
            made: list[tuple[str, int]] = super().make_dataset(
                directory, class_to_idx, *args, **options
            )
            return made
        return listing.samples()


def _list(root: str | Path, allow_empty: bool, cache: bool) -> Listing | None:
    """None where torchvision's own way must be gone: its errors, and what it lists otherwise."""
    path = os.path.expanduser(root) if isinstance(root, str) else os.fspath(root)
    if not isinstance(path, str) or path.startswith("~") or IMG_EXTENSIONS != _EXTENSIONS:
        return None
    try:
        return Listing.of(path, allow_empty, cache)
    except (Error, ValueError):
        return None


# Those that the C++ core knows.
_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
