"""Pictures of one channel: MNIST and its like, and what makes pictures gray."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Subset
from torchvision import transforms as v1
from torchvision.datasets import EMNIST, KMNIST, MNIST, QMNIST, FashionMNIST, ImageFolder
from torchvision.transforms import InterpolationMode, v2

from headrace import DataLoader
from headrace._core import RandomStream, Transform
from headrace.recipe import Pictures, to_json
from support import MEAN, STD, assert_same_behaviour, epochs, step

WORKERS = pytest.mark.parametrize("num_workers", [0, 2])


def mnist(kind: type[Any] = MNIST, transform: Any = None, size: tuple[int, int] = (28, 28)) -> Any:
    """MNIST's object without its files: the tensors as its constructor leaves them."""
    dataset = kind.__new__(kind)
    dataset.transform, dataset.target_transform = transform, None
    dataset.root, dataset.train = "", True
    generator = torch.Generator().manual_seed(9)
    dataset.data = torch.randint(0, 256, (41, *size[::-1]), generator=generator, dtype=torch.uint8)
    dataset.targets = torch.randint(0, 10, (41,), generator=generator)
    if kind is QMNIST:
        dataset.targets = torch.stack([dataset.targets] + [dataset.targets + 50] * 7, dim=1)
        dataset.compat = True
    return dataset


def usual() -> Any:
    return v1.Compose([v1.ToTensor(), v1.Normalize((0.1307,), (0.3081,))])


def padded() -> Any:
    return v2.Compose(
        [
            v2.Pad(2),
            v2.RandomCrop(28, padding=3, fill=7),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5], [0.5]),
        ]
    )


def resized() -> Any:
    return v1.Compose([v1.RandomResizedCrop(33), v1.RandomVerticalFlip(), v1.PILToTensor()])


def three_channels() -> Any:
    return v1.Compose(
        [
            v1.Resize((20, 36), InterpolationMode.BICUBIC),
            v1.Grayscale(3),
            v1.ToTensor(),
            v1.Normalize(MEAN, STD),
        ]
    )


def rgb() -> Any:
    return v2.Compose([v2.RGB(), v2.Pad(1, fill=(1, 2, 3)), v2.PILToTensor()])


def gray_again() -> Any:
    return v2.Compose([v2.Grayscale(), v2.RandomGrayscale(0.5), v2.PILToTensor()])


# --- datasets -------------------------------------------------------------------------------------


@WORKERS
@pytest.mark.parametrize("kind", [MNIST, FashionMNIST, KMNIST, EMNIST, QMNIST])
def test_every_dataset_of_the_kind(kind: type[Any], num_workers: int) -> None:
    def build(loader_type: Any) -> Any:
        return loader_type(mnist(kind, usual()), 8, shuffle=True, num_workers=num_workers)

    assert_same_behaviour(build)


@WORKERS
@pytest.mark.parametrize("pipeline", [padded, resized, three_channels, rgb, gray_again])
def test_transforms(pipeline: Callable[[], Any], num_workers: int) -> None:
    def build(loader_type: Any) -> Any:
        dataset = mnist(transform=pipeline(), size=(27, 31))
        return loader_type(dataset, 8, shuffle=True, num_workers=num_workers)

    assert_same_behaviour(build)


@pytest.mark.parametrize("pipeline", [usual, padded, resized, rgb])
def test_single_samples(pipeline: Callable[[], Any]) -> None:
    def build(loader_type: Any) -> Any:
        return loader_type(mnist(transform=pipeline()), batch_size=None)

    assert_same_behaviour(build)


def test_odd_indices_fail_as_torchs_do() -> None:
    indices = [3, -1, 99, 2.5, [1], slice(0, 2), None, "0", True, np.int64(4), torch.tensor(5)]

    def build(loader_type: Any) -> Any:
        return loader_type(mnist(transform=usual()), 1, sampler=indices)

    assert_same_behaviour(build, epochs(1))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_changed_tensors_are_seen_as_torch_sees_them(num_workers: int) -> None:
    def build(loader_type: Any) -> Any:
        return loader_type(mnist(transform=usual()), batch_size=4, num_workers=num_workers)

    def drive(loader: Any) -> Iterator[Any]:
        iterator = iter(loader)
        yield step(iterator)
        loader.dataset.data[4:40] //= 2
        loader.dataset.targets[5] = 77
        for _ in range(12):
            yield step(iterator)
        yield from epochs(1)(loader)

    assert_same_behaviour(build, drive)


@pytest.mark.parametrize("options", [{"dtype": torch.bfloat16}, {"rng": "counter"}])
def test_threads_and_workers_change_no_bit(options: dict[str, Any]) -> None:
    def run(threads: int) -> list[Any]:
        torch.manual_seed(4)
        return list(DataLoader(mnist(transform=padded()), 8, threads=threads, **options))

    for one, other in zip(run(1), run(3), strict=True):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])


def test_memory_formats_are_torchs() -> None:
    loader = DataLoader(mnist(transform=usual()), 8, memory_format=torch.channels_last)
    assert loader.explain().native
    plain = torch.utils.data.DataLoader(mnist(transform=usual()), 8)
    for (found, _), (expected, _) in zip(loader, plain, strict=True):
        expected = expected.to(memory_format=torch.channels_last)
        assert found.stride() == expected.stride() and torch.equal(found, expected)


@pytest.mark.parametrize(
    "change",
    [
        lambda dataset: setattr(dataset, "data", dataset.data.numpy()),
        lambda dataset: setattr(dataset, "data", dataset.data.float()),
        lambda dataset: setattr(dataset, "targets", dataset.targets.float()),
        lambda dataset: setattr(dataset, "targets", dataset.targets.tolist()),
        lambda dataset: setattr(dataset, "target_transform", str),
        lambda dataset: setattr(dataset, "transform", v1.Compose([v1.ToTensor(), three])),
        lambda dataset: setattr(dataset, "transform", v1.Compose([v1.Pad(1, (1, 2, 3)), tensor])),
    ],
)
def test_what_is_otherwise_takes_torchs_path(change: Callable[[Any], None]) -> None:
    dataset = mnist(transform=usual())
    assert DataLoader(dataset).explain().native
    change(dataset)
    assert not DataLoader(dataset).explain().native


three, tensor = v1.Normalize(MEAN, STD), v1.ToTensor()


def test_labels_that_are_tensors_take_torchs_path() -> None:
    dataset = mnist(QMNIST, usual())
    dataset.compat = False
    assert not DataLoader(dataset).explain().native


def test_trees_of_gray_pictures(pictures: Path) -> None:
    transform = usual()

    def build(loader_type: Any) -> Any:
        parts = [Subset(mnist(transform=transform), range(3, 20)), mnist(KMNIST, transform)]
        return loader_type(ConcatDataset(parts), 8, shuffle=True)

    assert_same_behaviour(build)
    mixed = ConcatDataset([mnist(transform=transform), ImageFolder(pictures, transform)])
    assert not DataLoader(mixed).explain().native


# --- pictures with colors -------------------------------------------------------------------------


def gray_files() -> Any:
    return v1.Compose(
        [
            v1.RandomResizedCrop(24),
            v1.Grayscale(),
            v1.RandomCrop(24, padding=2, fill=9),
            v1.ToTensor(),
            v1.Normalize((0.5,), (0.5,)),
        ]
    )


def sometimes_gray(api: Any) -> Any:
    return api.Compose(
        [api.RandomGrayscale(0.5), api.Resize((24, 20)), api.RandomGrayscale(0.2), api.ToTensor()]
    )


@pytest.mark.filterwarnings("ignore")
@WORKERS
@pytest.mark.parametrize(
    "pipeline", [gray_files, lambda: sometimes_gray(v1), lambda: sometimes_gray(v2)]
)
def test_files(pictures: Path, pipeline: Callable[[], Any], num_workers: int) -> None:
    def build(loader_type: Any) -> Any:
        folder = ImageFolder(pictures, pipeline())
        return loader_type(folder, 4, shuffle=True, num_workers=num_workers)

    assert_same_behaviour(build)


def test_every_color_has_pillows_luminance() -> None:
    steps = v1.Compose([v1.Grayscale(), v1.PILToTensor()])
    native = Transform(to_json(steps, pictures=Pictures(size=(4096, 1024))))
    values = np.arange(1 << 24, dtype=np.uint32)
    colors = np.stack([values & 255, values >> 8 & 255, values >> 16], axis=1).astype(np.uint8)
    for part in colors.reshape(4, 1024, 4096, 3):
        found = native.run(4096, 1024, part.tobytes(), RandomStream(0))
        assert found == Image.fromarray(part).convert("L").tobytes()
