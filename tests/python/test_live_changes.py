"""What the caller changes or draws while it iterates has the effect that it has with torch."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile
from torch.utils.data import DataLoader, Subset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from support import (
    MEAN,
    STD,
    assert_same_behaviour,
    begin,
    changed,
    end,
    epochs,
    evaluation,
    one_epoch,
    step,
    train,
    train_uint8,
    train_v2,
)

# --- random draws between batches, without workers ----------------------------------------------

Loader = DataLoader[Any]


def dropout(loader: Loader) -> Iterator[Any]:
    """A training step that draws after every batch."""
    for number, batch in enumerate(loader):
        yield batch, torch.nn.functional.dropout(torch.ones(5 + number % 3))


def now_and_then(loader: Loader) -> Iterator[Any]:
    iterator = begin(loader)
    for number in range(60):
        yield step(iterator)
        if number % 13 == 2 or 30 < number < 34:
            yield torch.rand(7)
        if number == 20:
            yield torch.randn(3)  # leaves half of a pair in the generator
        if number == 25:
            yield torch.randn(1)


def seeds_anew(loader: Loader) -> Iterator[Any]:
    iterator = begin(loader)
    for number in range(50):
        if number in (3, 20, 21):
            torch.manual_seed(number)
        yield step(iterator)


def keeps_the_generator(loader: Loader) -> Iterator[Any]:
    """Draws, and gives the generator back as it was."""
    for batch in loader:
        with torch.random.fork_rng(devices=[]):
            noise = torch.rand(3)
        yield batch, noise


@pytest.mark.parametrize("pipeline", [train, evaluation, train_v2])
@pytest.mark.parametrize("options", [{"batch_size": 1, "shuffle": True}, {"batch_size": 3}])
@pytest.mark.parametrize("drive", [dropout, now_and_then, seeds_anew, keeps_the_generator])
def test_the_callers_draws_and_ours_share_one_generator(
    pictures: Path, drive: Any, options: dict[str, Any], pipeline: Callable[[], Any]
) -> None:
    def build(loader_type: Any) -> Any:
        return loader_type(ImageFolder(pictures, pipeline()), **options)

    assert_same_behaviour(build, drive)


@pytest.mark.parametrize("drive", [now_and_then, seeds_anew])
def test_the_callers_draws_mix_with_bad_files(mixed_pictures: Path, drive: Any) -> None:
    def build(loader_type: Any) -> Any:
        return loader_type(ImageFolder(mixed_pictures, train()), batch_size=1, shuffle=True)

    assert_same_behaviour(build, drive)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_loaders_that_take_turns_leave_the_generator_as_torch_does(
    pictures: Path, num_workers: int
) -> None:
    def build(loader_type: Any) -> Any:
        folder = ImageFolder(pictures, train())
        other = loader_type(folder, batch_size=3, shuffle=True)
        loader = loader_type(folder, batch_size=2, shuffle=True, num_workers=num_workers)
        loader.other = other
        return loader

    def drive(loader: Any) -> Iterator[Any]:
        yield from itertools.islice(zip(loader, loader.other, strict=False), 6)

    assert_same_behaviour(build, drive)


# --- changes of dataset and process -------------------------------------------------------------


def folder_of(loader: Any) -> Any:
    dataset = loader.dataset
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return dataset


def other_transform(loader: Any, number: int) -> None:
    folder_of(loader).transform = evaluation(20) if number % 2 else train_uint8(20)


def draw_noise(image: Image.Image) -> torch.Tensor:
    return torch.rand(2)


def custom_transform(loader: Any, number: int) -> None:
    folder_of(loader).transform = draw_noise if number % 2 else train(20)


def no_transform(loader: Any, number: int) -> None:
    folder_of(loader).transform = None


def size_in_place(loader: Any, number: int) -> None:
    folder_of(loader).transform.transforms[0].size = (10 + number, 12)


def chance_in_place(loader: Any, number: int) -> None:
    folder_of(loader).transform.transforms[1].p = number % 2


def longer_pipeline(loader: Any, number: int) -> None:
    folder_of(loader).transform.transforms.append(v1.Normalize(MEAN, STD))


def other_class(loader: Any, number: int) -> None:
    folder_of(loader).__class__ = LastSampleOnly


class LastSampleOnly(ImageFolder):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(-1)


def other_samples(loader: Any, number: int) -> None:
    folder_of(loader).samples = folder_of(loader).samples[::-1]


def samples_in_place(loader: Any, number: int) -> None:
    samples = folder_of(loader).samples
    samples[number * 4 + 1] = (samples[0][0], 77)
    samples[-number - 6] = (samples[1][0], 78)


def fewer_samples(loader: Any, number: int) -> None:
    del folder_of(loader).samples[14:]


def float_labels(loader: Any, number: int) -> None:
    samples = folder_of(loader).samples
    samples[:] = [(path, float(label)) for path, label in samples]


def array_labels(loader: Any, number: int) -> None:
    samples = folder_of(loader).samples
    samples[:] = [(path, np.arange(2) + number) for path, _ in samples]


def shift_label(label: int) -> int:
    return label + 10


def target_transform(loader: Any, number: int) -> None:
    folder_of(loader).target_transform = shift_label if number % 2 else None


def plain_picture(path: str) -> Image.Image:
    return Image.new("RGB", (50, 40), (1, 2, 3))


def custom_loader(loader: Any, number: int) -> None:
    folder_of(loader).loader = plain_picture


def collate_fn(loader: Any, number: int) -> None:
    loader.collate_fn = list


def subset_indices(loader: Any, number: int) -> None:
    loader.dataset.indices = list(loader.dataset.indices)[::-1]


def subset_in_place(loader: Any, number: int) -> None:
    loader.dataset.indices[number * 4 + 3] = 0


def truncated_images(loader: Any, number: int) -> None:
    ImageFile.LOAD_TRUNCATED_IMAGES = number % 2 == 1


def image_pixels(loader: Any, number: int) -> None:
    Image.MAX_IMAGE_PIXELS = 900 if number % 2 else None


def default_dtype(loader: Any, number: int) -> None:
    torch.set_default_dtype(torch.float64 if number % 2 else torch.float32)


CHANGES = [
    other_transform,
    custom_transform,
    no_transform,
    size_in_place,
    chance_in_place,
    longer_pipeline,
    other_class,
    other_samples,
    samples_in_place,
    fewer_samples,
    float_labels,
    array_labels,
    target_transform,
    custom_loader,
    collate_fn,
    subset_indices,
    subset_in_place,
    truncated_images,
    image_pixels,
    default_dtype,
]


@pytest.fixture(autouse=True)
def settings_as_before() -> Iterator[None]:
    kept = {"MAX_IMAGE_PIXELS": Image.MAX_IMAGE_PIXELS}
    with changed(Image, **kept), changed(ImageFile, LOAD_TRUNCATED_IMAGES=False):
        yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "options",
    [{}, {"shuffle": True}, {"num_workers": 2, "persistent_workers": True, "shuffle": True}],
    ids=["live", "live shuffled", "workers"],
)
@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_seen_when_torch_sees_them(
    mixed_pictures: Path, change: Any, options: dict[str, Any]
) -> None:
    """At once without workers; with workers not before they start anew."""

    def build(loader_type: Any) -> Any:
        Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = 89_478_485, False
        torch.set_default_dtype(torch.float32)
        folder = ImageFolder(mixed_pictures, train())
        return loader_type(Subset(folder, list(range(2, 32))), batch_size=4, **options)

    def drive(loader: Any) -> Iterator[Any]:
        for _ in range(2):
            iterator = begin(loader)
            for number in range(9):
                if number in (1, 2, 5):
                    change(loader, number)
                yield step(iterator)

    assert_same_behaviour(build, drive)


def test_new_workers_see_what_has_changed(mixed_pictures: Path) -> None:
    def build(loader_type: Any) -> Any:
        return loader_type(ImageFolder(mixed_pictures, train()), batch_size=4, num_workers=1)

    def drive(loader: Any) -> Iterator[Any]:
        yield from one_epoch(loader, 2)
        samples_in_place(loader, 0)
        size_in_place(loader, 3)
        ImageFile.LOAD_TRUNCATED_IMAGES = True
        yield from one_epoch(loader)
        ImageFile.LOAD_TRUNCATED_IMAGES = False

    assert_same_behaviour(build, drive)


@pytest.mark.parametrize("kind", [torch.tensor, np.array])
def test_workers_have_their_own_copy_of_a_subsets_table(pictures: Path, kind: Any) -> None:
    def build(loader_type: Any) -> Any:
        table = kind(list(range(20)))
        return loader_type(Subset(ImageFolder(pictures, train()), table), 2, num_workers=1)

    def drive(loader: Any) -> Iterator[Any]:
        iterator = iter(loader)
        yield step(iterator)
        loader.dataset.indices += 1
        for _ in range(8):
            yield step(iterator)
        end(iterator)

    assert_same_behaviour(build, drive)


@pytest.mark.parametrize("limit", [0, 500, 2000, 1e6, float("inf"), None])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_pillows_pixel_limit_holds_for_files_and_crops(
    mixed_pictures: Path, limit: float | None, num_workers: int
) -> None:
    pad = v1.Compose([v1.CenterCrop(60), v1.ToTensor()])  # 3600 pixels, more than most files have

    def build(loader_type: Any) -> Any:
        folder = ImageFolder(mixed_pictures, pad)
        return loader_type(folder, batch_size=2, num_workers=num_workers)

    with changed(Image, MAX_IMAGE_PIXELS=limit):
        assert_same_behaviour(build, epochs(1))
