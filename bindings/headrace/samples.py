"""What the engine needs to know of a dataset: where each picture is, and its label.

A dataset is a tree: Subset and ConcatDataset over leaves. Each kind of leaf that is native has a
:class:`Leaf` that reads it exactly as its own ``__getitem__`` would.
"""

import bisect
import copy
import os
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset
from torchvision.datasets import (
    CIFAR10,
    CIFAR100,
    EMNIST,
    KMNIST,
    MNIST,
    QMNIST,
    DatasetFolder,
    FashionMNIST,
    ImageFolder,
)
from torchvision.datasets.folder import default_loader

from headrace import image_folder
from headrace._core import Samples
from headrace.hugging_face import HuggingFaceSamples, applies_orientation
from headrace.image_dataset import ImageDataset
from headrace.recipe import ANY_PICTURES, NotNative, Pictures
from headrace.settings import ProcessSettings


class Leaf(Protocol):
    """How one kind of dataset is read. `dataset` is always of exactly that type."""

    def check(self, dataset: Any) -> None:
        """Raises NotNative where its ``__getitem__`` would run code that is not known."""

    def look_up(self, dataset: Any, places: list[Any], before: Samples | None) -> Samples:
        """The samples at these places, by the lookups that ``dataset[place]`` would make.

        `before` is what they were, if that is known, and may be given back if they still are.

        Raises:
            Exception: whatever those raise. TypeError: content that is not known; it may also come
                when the samples are looked at.
        """

    def freeze(self, dataset: Any) -> None:
        """Replaces, in a shallow copy, what a later change of the original would show in."""

    def pictures(self, dataset: Any) -> Pictures:
        """What its transform gets."""


class Folder:
    """ImageFolder and DatasetFolder: `samples` of (path, label)."""

    def check(self, dataset: Any) -> None:
        if dataset.loader is not default_loader:
            raise NotNative(dataset.loader, "the loader is not torchvision's default_loader")
        _check_target_transform(dataset)

    def look_up(self, dataset: Any, places: list[Any], before: Samples | None) -> Samples:
        return _of_pairs(dataset.samples, places, (str, os.PathLike), before)

    def freeze(self, dataset: Any) -> None:
        dataset.samples = _copy_of_table(dataset.samples)

    def pictures(self, dataset: Any) -> Pictures:
        return ANY_PICTURES


class Cifar:
    """CIFAR10 and CIFAR100: `data`, uint8 of shape [samples, height, width, 3], and `targets`."""

    def check(self, dataset: Any) -> None:
        data = dataset.data
        if type(data) is not np.ndarray or data.dtype != np.uint8 or data.ndim != 4:
            raise NotNative(dataset, "its data is not the uint8 array that torchvision makes")
        if data.shape[3] != 3 or 0 in data.shape:
            raise NotNative(dataset, "its data is not RGB")
        _check_target_transform(dataset)

    def look_up(self, dataset: Any, places: list[Any], before: Samples | None) -> Samples:
        data, targets = dataset.data, dataset.targets
        _, height, width, _ = data.shape
        found = []
        for place in places:
            pixels, label = data[place], targets[place]
            if pixels.shape != (height, width, 3):
                raise TypeError("an index must name one picture")
            found.append(((pixels.tobytes(), width, height), label, place, False))
        return Samples(found)

    def freeze(self, dataset: Any) -> None:
        dataset.data = dataset.data.copy()
        dataset.targets = _copy_of_table(dataset.targets)

    def pictures(self, dataset: Any) -> Pictures:
        _, height, width, _ = dataset.data.shape
        return Pictures("RGB", (width, height))


class Mnist:
    """MNIST and its like: `data`, uint8 of shape [samples, height, width], and `targets`."""

    def check(self, dataset: Any) -> None:
        data = dataset.data
        if not _is_plain_tensor(data) or data.dtype != torch.uint8 or data.dim() != 3:
            raise NotNative(dataset, "its data is not the uint8 tensor that torchvision makes")
        if 0 in data.shape:
            raise NotNative(dataset, "its data is empty")
        if not _is_plain_tensor(dataset.targets) or dataset.targets.is_floating_point():
            raise NotNative(dataset, "its targets are not the integers that torchvision makes")
        _check_target_transform(dataset)

    def look_up(self, dataset: Any, places: list[Any], before: Samples | None) -> Samples:
        data, labels = dataset.data.numpy(), self._labels(dataset).numpy()
        _, height, width = data.shape
        found = []
        for place in places:
            pixels, label = data[place], int(labels[place])
            if pixels.shape != (height, width):
                raise TypeError("an index must name one picture")
            found.append(((pixels.tobytes(), width, height), label, place, False))
        return Samples(found)

    def freeze(self, dataset: Any) -> None:
        dataset.data = dataset.data.clone()
        dataset.targets = dataset.targets.clone()

    def pictures(self, dataset: Any) -> Pictures:
        _, height, width = dataset.data.shape
        return Pictures("L", (width, height))

    def _labels(self, dataset: Any) -> torch.Tensor:
        labels: torch.Tensor = dataset.targets
        return labels


class Qmnist(Mnist):
    """QMNIST: the label is the first of the `targets` of a picture."""

    def check(self, dataset: Any) -> None:
        super().check(dataset)
        if not dataset.compat or dataset.targets.dim() != 2:
            raise NotNative(dataset, "compat=False: its labels are tensors")

    def _labels(self, dataset: Any) -> torch.Tensor:
        return super()._labels(dataset)[:, 0]


class OwnImages:
    """ImageDataset over a sequence or a Hugging Face dataset."""

    def check(self, dataset: Any) -> None:
        samples = dataset.samples
        if type(samples) is HuggingFaceSamples:
            problem = samples.problem()
            if problem is not None:
                raise NotNative(samples.dataset, problem)

    def look_up(self, dataset: Any, places: list[Any], before: Samples | None) -> Samples:
        samples = dataset.samples
        if type(samples) is HuggingFaceSamples:
            upright = applies_orientation()
            pairs = zip(samples.look_up(places), places, strict=True)
            return Samples([(*pair, place, upright) for pair, place in pairs])
        return _of_pairs(samples, places, (str, bytes, os.PathLike), before)

    def freeze(self, dataset: Any) -> None:
        if type(dataset.samples) is not HuggingFaceSamples:  # those cannot change
            dataset.samples = _copy_of_table(dataset.samples)

    def pictures(self, dataset: Any) -> Pictures:
        return ANY_PICTURES


LEAVES: dict[type, Leaf] = {
    ImageFolder: Folder(),
    DatasetFolder: Folder(),
    image_folder.ImageFolder: Folder(),
    CIFAR10: Cifar(),
    CIFAR100: Cifar(),
    MNIST: Mnist(),
    FashionMNIST: Mnist(),
    KMNIST: Mnist(),
    EMNIST: Mnist(),
    QMNIST: Qmnist(),
    ImageDataset: OwnImages(),
}


def _is_plain_tensor(data: Any) -> bool:
    return type(data) is torch.Tensor and data.is_cpu and data.layout == torch.strided


def _of_pairs(table: Any, places: list[Any], kinds: Any, before: Samples | None) -> Samples:
    if before is not None and before.still_in(table, places):
        return before
    return Samples(table, places, kinds)


def _check_target_transform(dataset: Any) -> None:
    if dataset.target_transform is not None:
        raise NotNative(dataset.target_transform, "target_transform is Python code")


# --- trees --------------------------------------------------------------------------------------


def leaves(dataset: Any) -> Iterator[Any]:
    """The datasets under any number of Subsets and ConcatDatasets."""
    if type(dataset) is Subset:
        yield from leaves(dataset.dataset)
    elif type(dataset) is ConcatDataset:
        for part in dataset.datasets:
            yield from leaves(part)
    else:
        yield dataset


def _descend(dataset: Any, place: Any) -> tuple[Any, Any]:
    """The leaf that `dataset[place]` comes from, and its place there."""
    while True:
        if type(dataset) is Subset:
            dataset, place = dataset.dataset, dataset.indices[place]
        elif type(dataset) is ConcatDataset:  # as its __getitem__ has it
            if place < 0:
                if -place > len(dataset):
                    raise ValueError("absolute value of index should not exceed dataset length")
                place = len(dataset) + place
            number = bisect.bisect_right(dataset.cumulative_sizes, place)
            if number > 0:
                place = place - dataset.cumulative_sizes[number - 1]
            dataset = dataset.datasets[number]
        else:
            return dataset, place


def resolve(dataset: Any, indices: Any, before: Samples | None = None) -> Samples | Exception:
    """The sample of each index, by the lookups that dataset[index] would make.

    `before` is what they were. If they certainly still are, it may be what is returned.

    Returns an exception where those fail: the batch is then torch's own business.
    """
    try:
        if iter(indices) is indices:
            raise TypeError("its indices can be read only once")
        places = list(indices)
        while type(dataset) is Subset:
            table = dataset.indices
            places = [table[place] for place in places]
            dataset = dataset.dataset
        if type(dataset) in LEAVES:
            return _some(LEAVES[type(dataset)].look_up(dataset, places, before))
        found = [_descend(dataset, place) for place in places]
        samples: list[Any] = [None] * len(found)
        rows_of: dict[int, list[int]] = {}
        for row, (leaf, _) in enumerate(found):
            rows_of.setdefault(id(leaf), []).append(row)
        for rows in rows_of.values():
            leaf = found[rows[0]][0]
            looked_up = LEAVES[type(leaf)].look_up(leaf, [found[row][1] for row in rows], None)
            for row, sample in zip(rows, looked_up, strict=True):
                samples[row] = sample
        return _some(Samples(samples))
    except Exception as error:
        return error


def _some(samples: Samples) -> Samples:
    if not len(samples):
        raise ValueError("it has no samples")
    return samples


def rows_of(dataset: Any, indices: Any) -> list[tuple[Any, Any, int, bool]]:
    """What :func:`resolve` finds, as tuples; nothing where it fails."""
    try:
        found = resolve(dataset, indices)
        return [] if isinstance(found, Exception) else list(found)
    except TypeError:  # a content that is not known
        return []


def fetch(dataset: Any, key: Any, directory: str | None) -> Any:
    """dataset[key], as it would be in a process whose working directory is `directory`."""
    if directory is not None and directory != ProcessSettings.current().directory:
        rows = rows_of(dataset, [key])
        if rows and _is_relative(rows[0][0]):
            leaf, place = _descend(dataset, key)
            leaf = copy.copy(leaf)
            leaf.samples = {place: (os.path.join(directory, rows[0][0]), rows[0][1])}
            return leaf[place]
    return dataset[key]


def _is_relative(content: Any) -> bool:
    return isinstance(content, (str, os.PathLike)) and not os.path.isabs(content)


def path_of(dataset: Any, key: Any) -> str:
    """The file of a sample; "" where none is known."""
    try:
        leaf, place = _descend(dataset, key)
        path = leaf.samples[place][0]  # as torchvision's folders and their like have it
    except Exception:
        return ""
    return os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""


def snapshot(dataset: Any) -> Any:
    """What a worker process would have got: later changes of the original are not seen."""
    dataset = copy.copy(dataset)
    if type(dataset) is Subset:
        dataset.dataset = snapshot(dataset.dataset)
        dataset.indices = _copy_of_table(dataset.indices)
    elif type(dataset) is ConcatDataset:
        dataset.datasets = [snapshot(part) for part in dataset.datasets]
        dataset.cumulative_sizes = list(dataset.cumulative_sizes)
    else:
        LEAVES[type(dataset)].freeze(dataset)
        dataset.transform = copy.deepcopy(dataset.transform)
    return dataset


def _copy_of_table(table: Any) -> Any:
    # Of the usual kinds a flat copy will do, which is much faster.
    return copy.copy(table) if type(table) in (list, tuple, range) else copy.deepcopy(table)
