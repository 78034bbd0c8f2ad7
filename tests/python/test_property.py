"""Random pipelines, images and loader settings: the same batches, on whichever path.

HEADRACE_PROPERTY_EXAMPLES sets how many are tried; without it a few, always the same.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from PIL import ImageFile
from torch.utils.data import Subset, default_collate
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode, v2

from headrace import DataLoader
from support import (
    assert_same_behaviour,
    bad_files,
    changed,
    end,
    epochs,
    jpeg,
    step,
    train,
    write_folder,
)

EXAMPLES = os.environ.get("HEADRACE_PROPERTY_EXAMPLES")

# --- pipelines ----------------------------------------------------------------------------------

edges = st.integers(1, 40)
sizes = edges | st.tuples(edges, edges) | st.lists(edges, min_size=2, max_size=2)
versions = st.sampled_from([v1, v2])
native_filters = st.sampled_from(
    [InterpolationMode.BILINEAR, InterpolationMode.BICUBIC, InterpolationMode.NEAREST]
)
filters = native_filters | native_filters | st.sampled_from(list(InterpolationMode))
floats = st.floats(0.01, 3)
Step = Callable[[], Any]  # makes a new transform, since loaders must not share one


def scaled_float() -> Any:
    return v2.ToDtype(torch.float32, scale=True)


def steps(make: Callable[..., Any], **options: Any) -> st.SearchStrategy[Step]:
    """Steps `make(version, **options)` with drawn options, less those that torchvision refuses."""

    def buildable(step: Step) -> bool:
        try:
            step()
        except (ValueError, TypeError):
            return False
        return True

    def bind(values: dict[str, Any]) -> Step:
        return lambda: make(**values)

    drawn = st.fixed_dictionaries({"version": versions}, optional=options)
    return drawn.map(bind).filter(buildable)


def ranges(low: float, high: float) -> st.SearchStrategy[tuple[float, float]]:
    return st.tuples(st.floats(low, high), st.floats(low, high)).map(lambda pair: (*sorted(pair),))


resizes = steps(
    lambda version, size=30, **options: version.Resize(size, **options),
    size=st.tuples(edges, edges) | edges,
    interpolation=filters,
    max_size=st.integers(1, 60),
)
random_crops = steps(
    lambda version, size=24, **options: version.RandomResizedCrop(size, **options),
    size=sizes,
    scale=ranges(0, 1) | ranges(0.5, 3),
    ratio=ranges(0.2, 4),
    interpolation=filters,
)
center_crops = steps(lambda version, size=20: version.CenterCrop(size), size=sizes)
flips = steps(
    lambda version, p=0.5: version.RandomHorizontalFlip(p),
    p=st.floats(0, 1) | st.sampled_from([0, 1]),
)
normalizes = steps(
    lambda version, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4): version.Normalize(mean, std),
    mean=st.lists(floats, min_size=3, max_size=3) | st.lists(floats, min_size=1, max_size=2),
    std=st.lists(floats, min_size=3, max_size=3) | st.just([0.1, 0.0, 0.2]),
)
dtypes = steps(
    lambda version, dtype=torch.float32, scale=True: v2.ToDtype(dtype, scale=scale),
    dtype=st.sampled_from([torch.uint8, torch.float16, torch.float64]),
    scale=st.booleans(),
)
geometry = st.lists(center_crops | flips | random_crops, max_size=2)
fixed_sizes = random_crops | center_crops | st.tuples(resizes, center_crops)

to_float = st.sampled_from(
    [[v1.ToTensor], [v2.ToImage, scaled_float], [v1.PILToTensor, scaled_float]]
)
to_uint8 = st.sampled_from([v1.PILToTensor, v2.PILToTensor, v2.ToImage])
ends = to_float | to_uint8 | st.tuples(to_float, normalizes)
wild_ends = st.tuples(to_float | to_uint8, st.lists(dtypes | normalizes, max_size=2))


def flatten(parts: Any) -> list[Step]:
    if callable(parts):
        return [parts]
    return [step for part in parts for step in flatten(part)]


orders = st.tuples(fixed_sizes, geometry, ends | ends | wild_ends).map(flatten)
jumbled = orders.flatmap(st.permutations)  # mostly refused by torchvision, then by both alike


@st.composite
def pipelines(draw: st.DrawFn) -> Step:
    chosen = draw(orders | orders | orders | jumbled)
    compose = draw(versions).Compose
    return lambda: compose([step() for step in chosen])


# --- images and loaders -------------------------------------------------------------------------

cached_jpeg = cache(jpeg)
jpegs = st.builds(
    cached_jpeg,
    st.tuples(st.integers(1, 70), st.integers(1, 70)),
    st.integers(0, 20),
    mode=st.sampled_from(["RGB", "RGB", "RGB", "L", "CMYK"]),
    quality=st.sampled_from([30, 75, 95, 100]),
    subsampling=st.integers(0, 2),
    progressive=st.booleans(),
)
# One of these is enough to take a while.
large_jpegs = st.builds(
    cached_jpeg,
    st.sampled_from([(3000, 40), (31, 3000), (1200, 900), (3000, 2001), (701, 1999)]),
    st.just(1),
    mode=st.sampled_from(["RGB", "L", "CMYK"]),
    quality=st.sampled_from([60, 90]),
    subsampling=st.integers(0, 2),
)
damaged = st.sampled_from(list(bad_files().values()))
truncated = st.tuples(jpegs, st.floats(0, 1)).map(lambda it: it[0][: int(len(it[0]) * it[1])])
small_images = st.lists(jpegs | jpegs | jpegs | damaged | truncated, min_size=2, max_size=12)
images = st.tuples(small_images, st.lists(large_jpegs, max_size=1) | st.just([])).map(
    lambda lists: [*lists[0], *lists[1]]
)
mixup = v2.MixUp(num_classes=2)
mixings = [mixup, v2.CutMix(num_classes=2), v2.RandomChoice([mixup, v2.CutMix(num_classes=2)])]


def mixed_by(mixing: Any) -> Callable[[Any], Any]:
    return lambda batch: mixing(*default_collate(batch))


def reseed(worker: int) -> None:
    torch.manual_seed(torch.initial_seed() + 7 * worker)


@st.composite
def loader_options(draw: st.DrawFn) -> dict[str, Any]:
    options: dict[str, Any] = {
        "batch_size": draw(st.integers(1, 5) | st.integers(1, 5) | st.none()),
        "shuffle": draw(st.booleans()),
        "num_workers": draw(st.sampled_from([0, 0, 0, 1, 2])),
    }
    if options["batch_size"] is not None:
        options["drop_last"] = draw(st.booleans())
        mixing = draw(st.none() | st.none() | st.sampled_from(mixings))
        if mixing is not None:
            options["collate_fn"] = mixed_by(mixing)
    if options["num_workers"]:
        options["worker_init_fn"] = draw(st.sampled_from([None, None, reseed]))
        options["prefetch_factor"] = draw(st.integers(1, 3))
        options["persistent_workers"] = draw(st.booleans())
    return options


few_or_many = settings(
    max_examples=int(EXAMPLES or 25),
    derandomize=EXAMPLES is None,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


@few_or_many
@given(pipelines(), images, loader_options(), st.integers(1, 6))
def test_random_loaders_behave_as_torchs(
    pipeline: Step, images: list[bytes], options: dict[str, Any], at_most: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        files = {f"{number:02}.jpg": content for number, content in enumerate(images)}
        root = write_folder(Path(directory), files, classes=2)

        def build(loader_type: Any) -> Any:
            folder = ImageFolder(root, pipeline(), allow_empty=True)
            return loader_type(Subset(folder, range(len(folder))), **options)

        path = build(DataLoader).explain().path
        event(f"{path} path")
        assert_same_behaviour(build, epochs(3, at_most=at_most), path)


# --- callers ------------------------------------------------------------------------------------


class Caller:
    """A caller's deeds, each of which says what came of it."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.iterators = [iter(loader)]
        self.folder = loader.dataset.dataset

    def next_batch(self) -> Any:
        return step(self.iterators[-1])

    def next_of_another(self) -> Any:
        return step(self.iterators[0])

    def some_batches(self) -> Any:
        return [step(self.iterators[-1]) for _ in range(10)]

    def new_iterator(self) -> Any:
        self.iterators.append(iter(self.loader))
        return len(self.iterators[-1])

    def draw(self) -> Any:
        return torch.rand(3)

    def seed(self) -> Any:
        torch.manual_seed(7)

    def change_transform(self) -> Any:
        steps = self.folder.transform.transforms
        steps[0].size = (steps[0].size[0] % 9 + 8, 10)

    def leave_the_native_path(self) -> Any:
        self.folder.target_transform = negative

    def return_to_the_native_path(self) -> Any:
        self.folder.target_transform = None

    def change_samples(self) -> Any:
        self.folder.samples.append(self.folder.samples.pop(0))

    def change_a_label(self) -> Any:
        self.folder.samples[3] = (self.folder.samples[3][0], 2.5)

    def tolerate_truncation(self) -> Any:
        ImageFile.LOAD_TRUNCATED_IMAGES = not ImageFile.LOAD_TRUNCATED_IMAGES


def negative(label: int) -> int:
    return -label


deeds = st.lists(
    st.sampled_from(
        [Caller.next_batch] * 8 + [f for name, f in vars(Caller).items() if name[0] != "_"]
    ),
    min_size=5,
    max_size=40,
)


@few_or_many
@given(deeds, st.integers(1, 5), st.booleans(), st.sampled_from([0, 0, 0, 0, 1]))
def test_random_callers_are_served_as_by_torch(
    mixed_pictures: Path,
    deeds: list[Callable[[Caller], Any]],
    batch: int,
    shuffle: bool,
    workers: int,
) -> None:
    def build(loader_type: Any) -> Any:
        folder = ImageFolder(mixed_pictures, train(16))
        return loader_type(Subset(folder, range(33)), batch, shuffle, num_workers=workers)

    def drive(loader: Any) -> Iterator[Any]:
        with changed(ImageFile, LOAD_TRUNCATED_IMAGES=False):
            caller = Caller(loader)
            for deed in deeds:
                yield deed(caller)
            for iterator in caller.iterators:
                end(iterator)

    assert_same_behaviour(build, drive)
