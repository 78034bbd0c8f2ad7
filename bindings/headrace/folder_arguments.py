"""What commands that work on a folder of images have in common: arguments, and the dataset."""

import argparse
import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from headrace.cli import CommandError

_LAYOUT = "headrace expects one folder of images for each class, such as {0}/cat/1.jpg"

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's


def add_folder_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the folder and what is done to its images."""
    add = parser.add_argument
    add("directory", metavar="DIR", help="images, one folder for each class")
    add(
        "--transform",
        choices=("train", "eval"),
        default="train",
        help="train: random crop to 224 and flip; eval: resize to 256, crop 224 (default: train)",
    )
    add(
        "--all-files",
        action="store_true",
        help="files without an image's extension too: what they are is told by their content",
    )
    add(
        "--api",
        choices=("v1", "v2"),
        default="v1",
        help="torchvision.transforms or torchvision.transforms.v2 (default: v1)",
    )


def open_folder(directory: str, api: str, transform: str, all_files: bool = False) -> ImageFolder:
    """The folder as a dataset. Class folders may be without images, as long as not all are.

    Args:
        directory: images, one folder for each class.
        api: "v1" or "v2", of torchvision's transforms.
        transform: "train" or "eval".
        all_files: whatever their extensions.

    Raises:
        CommandError: it cannot be opened.
    """
    layout = _LAYOUT.format(directory.rstrip("/"))
    if not os.path.isdir(directory):
        problem = "is not a directory" if os.path.exists(directory) else "does not exist"
        raise CommandError(f"{directory} {problem}. Name a directory: {layout}")
    make = partial(
        ImageFolder,
        directory,
        _TRANSFORMS[api, transform](),
        is_valid_file=os.path.isfile if all_files else None,
    )
    try:
        folder = make(allow_empty=True)
        return folder if folder.samples else make()  # which says what is wrong
    except OSError as error:  # torchvision also uses FileNotFoundError for folders without images
        raise CommandError(
            f"{directory}: {str(error).rstrip('.')}. Check its permissions and layout: {layout}"
        ) from error


def left_out(folder: ImageFolder) -> str:
    """What of the directory is no sample, in words; "" if there is no such thing."""
    taken = {path for path, _ in folder.samples}
    others = Counter(
        os.path.splitext(name)[1] or "without extension"
        for place, _, names in os.walk(folder.root, followlinks=True)
        for name in names
        if os.path.join(place, name) not in taken
    )
    filled = set(folder.targets)
    empty = [name for name, label in folder.class_to_idx.items() if label not in filled]
    parts = []
    if others:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(others.items()))
        parts.append(f"{others.total()} files that torchvision takes for no images ({kinds})")
    if empty:
        parts.append(f"class folders without images ({', '.join(empty)})")
    return " and ".join(parts)


def _train(api: Any, to_tensor: list[Any]) -> Any:
    return api.Compose(
        [
            api.RandomResizedCrop(224),
            api.RandomHorizontalFlip(),
            *to_tensor,
            api.Normalize(_MEAN, _STD),
        ]
    )


def _eval(api: Any, to_tensor: list[Any]) -> Any:
    return api.Compose(
        [api.Resize(256), api.CenterCrop(224), *to_tensor, api.Normalize(_MEAN, _STD)]
    )


def _v2_to_tensor() -> list[Any]:
    return [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]


_TRANSFORMS: dict[tuple[str, str], Callable[[], Any]] = {
    ("v1", "train"): lambda: _train(v1, [v1.ToTensor()]),
    ("v1", "eval"): lambda: _eval(v1, [v1.ToTensor()]),
    ("v2", "train"): lambda: _train(v2, _v2_to_tensor()),
    ("v2", "eval"): lambda: _eval(v2, _v2_to_tensor()),
}


def count(minimum: int) -> Callable[[str], int]:
    """A type for argparse: whole numbers from `minimum` on."""
    maximum = 2**31 - 1

    def parse(text: str) -> int:
        number = int(text)
        if not minimum <= number <= maximum:
            raise argparse.ArgumentTypeError(f"{number} is not from {minimum} to {maximum}")
        return number

    parse.__name__ = "whole number"  # argparse names it in its message
    return parse
