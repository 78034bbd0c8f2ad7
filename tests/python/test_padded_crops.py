"""RandomCrop, Pad and the flips in whole loaders: batches, errors and random streams as torch's."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import transforms as v1
from torchvision.datasets import CIFAR10, ImageFolder
from torchvision.transforms import v2

from headrace import DataLoader
from support import MEAN, STD, assert_same, assert_same_behaviour, changed, one_epoch

WORKERS = pytest.mark.parametrize("num_workers", [0, 2])


def cifar(transform: Any) -> Any:
    """CIFAR10's object without its files: the arrays as its constructor leaves them."""
    dataset = CIFAR10.__new__(CIFAR10)
    dataset.transform, dataset.target_transform = transform, None
    dataset.root, dataset.train = "", True
    rng = np.random.default_rng(8)
    dataset.data = rng.integers(0, 256, (41, 32, 32, 3), dtype=np.uint8)
    dataset.targets = rng.integers(0, 10, 41).tolist()
    return dataset


def usual() -> Any:
    return v1.Compose(
        [
            v1.RandomCrop(32, padding=4),
            v1.RandomHorizontalFlip(),
            v1.ToTensor(),
            v1.Normalize(MEAN, STD),
        ]
    )


def usual_v2() -> Any:
    return v2.Compose(
        [
            v2.RandomCrop(32, padding=4),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )


def on_tensors() -> Any:
    return v2.Compose(
        [
            v2.ToImage(),
            v2.RandomHorizontalFlip(),
            v2.RandomCrop((32, 30), padding=(4, 2, 1, 0), padding_mode="reflect"),
            v2.RandomVerticalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.RandomCrop(28, padding=2),
            v2.Normalize(MEAN, STD),
        ]
    )


def symmetric_to_bytes() -> Any:
    return v1.Compose(
        [
            v1.Pad((0, 3, 4, 5), fill=(9, 8, 7)),
            v1.RandomVerticalFlip(0.7),
            v1.RandomCrop(40, padding=10, padding_mode="symmetric"),
            v1.PILToTensor(),
        ]
    )


def resized_and_padded() -> Any:
    return v1.Compose(
        [
            v1.Resize(40),
            v1.RandomCrop(36, padding=(5, 2), fill=128),
            v1.RandomHorizontalFlip(),
            v1.ToTensor(),
        ]
    )


def crop_before_resize() -> Any:
    return v2.Compose(
        [
            v2.RandomCrop((30, 26), 3, pad_if_needed=True, padding_mode="edge"),
            v2.RandomVerticalFlip(),
            v2.Resize((24, 20)),
            v2.PILToTensor(),
        ]
    )


def larger_than_some() -> Any:
    return v1.Compose([v1.RandomCrop((9, 30)), v1.ToTensor()])


def larger_than_some_v2() -> Any:
    return v2.Compose([v2.RandomCrop((30, 20), padding=2), v2.PILToTensor()])


@WORKERS
@pytest.mark.parametrize("pipeline", [usual, usual_v2, on_tensors, symmetric_to_bytes])
def test_pictures_in_memory(pipeline: Callable[[], Any], num_workers: int) -> None:
    def build(loader_type: Any) -> Any:
        return loader_type(cifar(pipeline()), 8, shuffle=True, num_workers=num_workers)

    assert_same_behaviour(build)


@WORKERS
@pytest.mark.parametrize(
    "pipeline",
    [resized_and_padded, crop_before_resize, larger_than_some, larger_than_some_v2],
)
def test_files_of_many_sizes(pictures: Path, pipeline: Callable[[], Any], num_workers: int) -> None:
    def build(loader_type: Any) -> Any:
        folder = ImageFolder(pictures, pipeline())
        return loader_type(folder, 3, shuffle=True, num_workers=num_workers)

    assert_same_behaviour(build)


def test_pillows_limit_holds_for_crops_only() -> None:
    def drive(loader: Any) -> Iterator[Any]:
        from PIL import Image

        with changed(Image, MAX_IMAGE_PIXELS=400):  # the crop has 1024, over twice that
            yield from one_epoch(loader, 3)

    def build(loader_type: Any) -> Any:
        return loader_type(cifar(usual()), 8)

    assert_same_behaviour(build, drive)


def test_single_samples() -> None:
    def build(loader_type: Any) -> Any:
        return loader_type(cifar(usual()), batch_size=None, num_workers=1)

    assert_same_behaviour(build)


def test_views_of_tensors_are_torchs_own_business() -> None:
    loader = DataLoader(cifar(on_tensors()), batch_size=None)
    assert not loader.explain().native


@pytest.mark.parametrize("options", [{}, {"rng": "counter", "seed": 3}], ids=["torch", "counter"])
def test_a_run_goes_on_where_it_stopped(options: dict[str, Any]) -> None:
    def make() -> Any:
        torch.manual_seed(5)
        return DataLoader(cifar(usual()), 8, shuffle=True, num_workers=2, **options)

    loader = make()
    iterator = iter(loader)
    next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = list(iterator)
    again = make()
    again.load_state_dict(state)
    assert_same(list(again), rest)


def test_own_streams_depend_on_nothing_but_the_sample() -> None:
    def run(**options: Any) -> Any:
        return list(DataLoader(cifar(usual()), 8, rng="counter", seed=3, **options))

    assert_same(run(num_workers=2, threads=2), run(num_workers=0, threads=1))


@pytest.mark.parametrize(
    "step",
    [
        v1.RandomCrop(32, padding=-1),
        v1.RandomCrop(32, padding=1, fill=256),
        v1.RandomCrop(32, padding=1, fill=0.5),
        v2.RandomCrop(32, padding=1, fill={torch.Tensor: 3}),
        v1.RandomCrop(32, padding=1, fill=(1, 2)),
        v1.Pad((1, 2), fill=(1, 2, 3, 4)),
    ],
    ids=repr,
)
def test_odd_options_are_torchs_own_business(step: Any) -> None:
    loader = DataLoader(cifar(v1.Compose([step, v1.ToTensor()])), 4)
    assert not loader.explain().native
