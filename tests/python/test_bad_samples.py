"""Damaged and foreign files: the same exceptions at the same places, the same batches after."""

import io
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import Subset
from torchvision.datasets import ImageFolder

import headrace
from headrace._core import inspect_image
from support import (
    assert_same_behaviour,
    bad_files,
    encoded,
    epochs,
    evaluation,
    good_files,
    picture,
    train,
    train_v2,
)

GOOD, BAD = sorted(good_files()), sorted(bad_files())
REFUSED = ["empty.jpg", "half.jpg", "header only.jpg", "garbage.jpg", "text.jpg", "truncated.png"]

# Rows of batches of four: which file stands where.
ARRANGEMENTS = {
    "first row": [BAD[3], *GOOD[:7]],
    "last row": [*GOOD[:3], "empty.jpg", *GOOD[3:8]],
    "several in one batch": ["no end.jpg", GOOD[0], "half.jpg", "text.jpg", *GOOD[1:6]],
    "a whole batch": [*GOOD[:4], *REFUSED[:4], *GOOD[4:12]],
    "consecutive batches": [*REFUSED[:3], GOOD[0], *REFUSED[3:], *GOOD[1:3], "gif.jpg", *GOOD[3:9]],
    "refused after foreign": ["png.jpg", "deep.png", "half.jpg", GOOD[1], *GOOD[2:9], "alpha.png"],
    "everything": BAD,
}
WORKERS = [
    {"num_workers": 0},
    {"num_workers": 1},
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 3, "prefetch_factor": 1},
]


def subset_of(folder: ImageFolder, names: list[str]) -> Subset[Any]:
    places = {Path(path).name: place for place, (path, _) in enumerate(folder.samples)}
    return Subset(folder, [places[name] for name in names])


def test_the_files_are_as_bad_as_their_names_say(mixed_pictures: Path) -> None:
    folder = ImageFolder(mixed_pictures, train())
    for name in REFUSED:
        with pytest.raises(OSError, match=r"[Tt]runcated|cannot identify"):
            subset_of(folder, [name])[0]


@pytest.mark.parametrize("options", WORKERS, ids=lambda options: str(options["num_workers"]))
@pytest.mark.parametrize("pipeline", [train, evaluation])
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_batches_and_exceptions_are_torchs(
    mixed_pictures: Path, arrangement: str, pipeline: Callable[[], Any], options: dict[str, Any]
) -> None:
    def build(loader_type: Any) -> Any:
        dataset = subset_of(ImageFolder(mixed_pictures, pipeline()), ARRANGEMENTS[arrangement])
        return loader_type(dataset, batch_size=4, **options)

    assert_same_behaviour(build)


@pytest.mark.parametrize("options", WORKERS, ids=lambda options: str(options["num_workers"]))
def test_shuffled_epochs_with_many_bad_files_are_torchs(
    mixed_pictures: Path, options: dict[str, Any]
) -> None:
    def build(loader_type: Any) -> Any:
        folder = ImageFolder(mixed_pictures, train_v2())
        return loader_type(folder, batch_size=3, shuffle=True, **options)

    assert_same_behaviour(build, epochs(4))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_strange_files_of_the_corpus_are_treated_as_torch_does(
    strange_pictures: Path, num_workers: int
) -> None:
    def build(loader_type: Any) -> Any:
        folder = ImageFolder(strange_pictures, train())
        return loader_type(folder, batch_size=2, num_workers=num_workers)

    assert_same_behaviour(build, epochs(1))


# --- samples ------------------------------------------------------------------------------------

PATHS: dict[str, Callable[[str], Any]] = {
    "missing": lambda path: path + " is missing",
    "a directory": lambda path: str(Path(path).parent),
    "empty": lambda path: "",
    "with a null byte": lambda path: path + "\0",
    "not encodable": lambda path: path + "\ud800",
    "undecodable bytes": lambda path: path + "\udcff",
    "bytes": lambda path: path.encode(),
    "pathlib": Path,
    "none": lambda path: None,
    "a closed file descriptor": lambda path: 98765,
}
LABELS = [
    True,
    np.int64(3),
    1.5,
    "text",
    None,
    (1, 2),
    np.array([1, 2]),
    {"a": 1},
    -5,
    2**63 - 1,
    2**63,
]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_paths_of_every_kind_are_torchs_business(pictures: Path, num_workers: int) -> None:
    def build(loader_type: Any) -> Any:
        folder = ImageFolder(pictures, train())
        good = folder.samples[:]
        folder.samples = []
        for change, (path, label) in zip(PATHS.values(), good, strict=False):
            folder.samples += [(path, label), (change(path), 1)]
        return loader_type(folder, batch_size=2, num_workers=num_workers)

    assert_same_behaviour(build, epochs(1))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_labels_of_every_kind_are_collated_as_torch_does(pictures: Path, num_workers: int) -> None:
    def build(loader_type: Any) -> Any:
        folder = ImageFolder(pictures, train())
        path, other = folder.samples[0][0], folder.samples[1][0]
        folder.samples = []
        for label in LABELS:  # in batches of their own, and mixed with ordinary ones
            folder.samples += [(path, label), (other, label), (path, 1), (other, label)]  # type: ignore[list-item]
        return loader_type(folder, batch_size=2, num_workers=num_workers)

    assert_same_behaviour(build, epochs(1))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", [list, dict, np.array])
def test_samples_of_odd_kinds_are_torchs_business(
    pictures: Path, kind: Any, num_workers: int
) -> None:
    def build(loader_type: Any) -> Any:
        folder = ImageFolder(pictures, train())
        samples: list[Any] = list(folder.samples)
        if kind is list:
            samples[5] = list(samples[5])
            samples[9] = (*samples[9], "one too many")
            samples[13] = "ab"
            samples[17] = 5
            folder.samples = samples
        elif kind is dict:
            folder.samples = dict(enumerate(samples))  # type: ignore[assignment]
        else:
            folder.samples = np.array(samples, dtype=object)  # type: ignore[assignment]
        return loader_type(folder, batch_size=4, num_workers=num_workers)

    assert_same_behaviour(build, epochs(1))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_exception_names_the_file_and_the_sample(mixed_pictures: Path, num_workers: int) -> None:
    dataset = subset_of(ImageFolder(mixed_pictures, train()), [GOOD[0], "half.jpg", GOOD[1]])
    iterator = iter(headrace.DataLoader(dataset, batch_size=3, num_workers=num_workers))
    with pytest.raises(OSError, match="truncated") as caught:
        next(iterator)
    assert caught.value.sample_path.endswith("half.jpg")
    assert caught.value.sample_index == 1
    notes = "".join(getattr(caught.value, "__notes__", ["half.jpg"]))
    assert "half.jpg" in notes


# --- warnings -----------------------------------------------------------------------------------


def test_files_that_pillow_warns_of_are_left_to_it() -> None:
    """Multi-picture indexes, whole and spoilt: what is decoded natively gives no warning."""
    pictures = [picture((24, 20), number) for number in range(3)]
    whole = encoded(pictures[0], "MPO", save_all=True, append_images=pictures[1:])
    assert not isinstance(inspect_image(whole), str)
    index = whole.index(b"MPF\0") + 4
    rng = random.Random(0)
    left = 0
    for _ in range(1500):
        spoilt = bytearray(whole)
        for _ in range(rng.randint(1, 2)):
            spoilt[index + rng.randrange(80)] = rng.choice([0, 1, 2, 4, 7, 255, rng.randrange(256)])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            Image.open(io.BytesIO(spoilt)).convert("RGB")
        if isinstance(inspect_image(bytes(spoilt)), str):
            left += 1
        else:
            assert not caught, f"accepted, but Pillow warns: {caught[0].message}"
    assert 0 < left < 1500
