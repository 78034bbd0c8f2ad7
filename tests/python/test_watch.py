"""Without workers a path is decided anew only when something has changed, and then always."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from PIL import Image
from torch.utils.data import ConcatDataset, Subset, default_convert
from torch.utils.data._utils import collate as torch_collate
from torchvision import transforms as v1
from torchvision.datasets import CIFAR10, ImageFolder
from torchvision.transforms import v2

from headrace import DataLoader
from headrace.recipe import flatten
from headrace.watch import Watch
from support import MEAN, STD, train, train_v2


def loader_of(pictures: Path, transform: Any) -> DataLoader[Any]:
    folder = ImageFolder(pictures, transform)
    return DataLoader(ConcatDataset([Subset(folder, range(20)), folder]), batch_size=4)


def folder_of(loader: DataLoader[Any]) -> Any:
    dataset: Any = loader.dataset
    return dataset.datasets[1]


@pytest.mark.parametrize("pipeline", [train, train_v2])
def test_nothing_changes_while_one_iterates(pictures: Path, pipeline: Callable[[], Any]) -> None:
    loader = loader_of(pictures, pipeline())
    watch = Watch(loader)
    for _ in zip(range(6), loader, strict=False):
        assert watch.unchanged()


@pytest.mark.parametrize("pipeline", [train, train_v2])
def test_every_attribute_of_every_step_counts(
    pictures: Path, pipeline: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = pipeline()
    loader = loader_of(pictures, pipe)
    places = [(step, name) for step in [pipe, *flatten(pipe)] for name in vars(step)]
    assert len(places) > 30
    for step, name in places:
        watch = Watch(loader)
        with monkeypatch.context() as patch:
            # Equal to what was there in one case; another object all the same.
            patch.setitem(vars(step), name, [vars(step)[name]])
            assert not watch.unchanged(), (step, name)
        assert watch.unchanged()
        with monkeypatch.context() as patch:
            patch.delitem(vars(step), name)
            assert not watch.unchanged(), (step, name)


def attribute(owner: Any, name: str, value: Any) -> Callable[[Any, pytest.MonkeyPatch], None]:
    return lambda loader, patch: patch.setattr(owner, name, value, raising=False)


def of_loader(name: str, value: Any) -> Callable[[Any, pytest.MonkeyPatch], None]:
    return lambda loader, patch: patch.setattr(loader, name, value)


def of_folder(name: str, value: Any) -> Callable[[Any, pytest.MonkeyPatch], None]:
    return lambda loader, patch: patch.setattr(folder_of(loader), name, value)


def of_step(number: int, change: Callable[[Any], None]) -> Callable[[Any, Any], None]:
    return lambda loader, patch: change(list(flatten(folder_of(loader).transform))[number])


def nothing(*args: Any) -> None:
    pass


class Other(ImageFolder):
    pass


CHANGES: dict[str, Callable[[Any, pytest.MonkeyPatch], None]] = {
    "collate_fn": of_loader("collate_fn", list),
    "another known collate_fn": of_loader("collate_fn", default_convert),
    "on_error": of_loader("on_error", "skip"),
    "dtype": of_loader("dtype", torch.float16),
    "newer argument": lambda loader, _: loader._newer_arguments.update(new=1),
    "transform": of_folder("transform", train()),
    "target_transform": of_folder("target_transform", nothing),
    "loader": of_folder("loader", nothing),
    "class": of_folder("__class__", Other),
    "parts": lambda loader, _: loader.dataset.datasets.append(folder_of(loader)),
    "parts in turn": lambda loader, _: loader.dataset.datasets.reverse(),
    "subset": lambda loader, patch: patch.setattr(loader.dataset.datasets[0], "dataset", []),
    "step": lambda loader, _: folder_of(loader).transform.transforms.pop(),
    "steps in turn": lambda loader, _: folder_of(loader).transform.transforms.reverse(),
    "list in place": of_step(-1, lambda step: step.mean.reverse()),
    "tensor in place": of_step(0, lambda step: step._log_ratio.mul_(2)),
    "shared memory": of_step(0, lambda step: step._log_ratio.numpy().__setitem__(0, -1)),
    "hook": of_step(0, lambda step: step.register_forward_hook(nothing)),
    "early hook": of_step(0, lambda step: step.register_forward_pre_hook(nothing)),
    "method of an object": of_step(0, lambda step: setattr(step, "forward", nothing)),
    "method of a class": attribute(v2.RandomResizedCrop, "transform", nothing),
    "method of a base": attribute(v2.Transform, "forward", nothing),
    "dataset's method": attribute(ImageFolder, "__getitem__", nothing),
    "dataset's new method": attribute(ImageFolder, "__getitems__", nothing),
    "image's method": attribute(Image.Image, "convert", nothing),
    "loading": attribute(torchvision.datasets.folder, "pil_loader", nothing),
    "opening": attribute(Image, "open", nothing),
    "collation": attribute(torch_collate, "collate_tensor_fn", nothing),
    "registry": lambda _, patch: patch.setitem(
        torch_collate.default_collate_fn_map, torch.Tensor, nothing
    ),
    "registry's new entry": lambda _, patch: patch.setitem(
        torch_collate.default_collate_fn_map, Other, nothing
    ),
    "default dtype": lambda *_: torch.set_default_dtype(torch.float64),
    "default device": lambda *_: torch.set_default_device("meta"),
    "image backend": lambda _, patch: patch.setattr(torchvision, "_image_backend", "accimage"),
}


@pytest.fixture(autouse=True)
def settings_as_before() -> Any:
    yield
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_changes_are_noticed(
    pictures: Path, change: Callable[[Any, pytest.MonkeyPatch], None]
) -> None:
    to_float = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    steps = [v2.RandomResizedCrop(32), *to_float, v2.Normalize(list(MEAN), list(STD))]
    loader = loader_of(pictures, v2.Compose(steps))
    watch = Watch(loader)
    assert watch.unchanged()
    with pytest.MonkeyPatch.context() as patch:
        change(loader, patch)
        assert not watch.unchanged()


def test_shapes_of_arrays_count() -> None:
    dataset = CIFAR10.__new__(CIFAR10)
    dataset.data = torch.zeros(6, 8, 8, 3, dtype=torch.uint8).numpy()
    dataset.transform, dataset.target_transform = v1.ToTensor(), None
    loader: DataLoader[Any] = DataLoader(dataset, sampler=[0])
    watch = Watch(loader)
    assert watch.unchanged()
    dataset.data.shape = 6, 4, 16, 3
    assert not watch.unchanged()


@pytest.mark.parametrize(
    "mean", [[*MEAN[:2], torch.tensor(0.5)], torch.tensor(MEAN).numpy(), {0.5: 1}, {0.5}]
)
def test_what_cannot_be_watched_never_counts_as_unchanged(pictures: Path, mean: Any) -> None:
    step = v1.Normalize(mean, STD)
    watch = Watch(loader_of(pictures, v1.Compose([v1.CenterCrop(8), v1.ToTensor(), step])))
    known = isinstance(mean, (list, dict))
    assert watch.unchanged() == known
    if isinstance(mean, list):
        mean[2] += 1
    elif isinstance(mean, dict):
        mean[0.5] = 2
    assert not watch.unchanged()
