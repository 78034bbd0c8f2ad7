"""What random tests draw from: pipelines, image files, datasets, samplers, settings of loaders.

A draw describes things; `build`, or calling it, makes them anew, since loaders must not share any.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import (
    ConcatDataset,
    DistributedSampler,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)
from torch.utils.data import DataLoader as TorchLoader
from torchvision import transforms as v1
from torchvision.datasets import DatasetFolder, ImageFolder
from torchvision.datasets.folder import default_loader
from torchvision.transforms import InterpolationMode, v2

import headrace
from support import bad_files, encoded, picture

# In continuous integration always the same examples; HYPOTHESIS_PROFILE=long tries thousands.
common: dict[str, Any] = {"database": None, "deadline": None, "print_blob": True}
settings.register_profile("few", max_examples=150, derandomize=True, **common)
settings.register_profile("long", max_examples=5000, **common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "few"))
LONG = settings.get_current_profile_name() == "long"

Make = Callable[[], Any]


def often(common: st.SearchStrategy[Any], rare: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """`rare` once in eight times."""
    return st.integers(0, 7).flatmap(lambda number: rare if number == 7 else common)


def ranges(low: float, high: float) -> st.SearchStrategy[tuple[float, float]]:
    return st.tuples(st.floats(low, high), st.floats(low, high)).map(lambda pair: (*sorted(pair),))


# --- pipelines ----------------------------------------------------------------------------------

edges = st.integers(1, 40)
sizes = edges | st.tuples(edges, edges) | st.lists(edges, min_size=2, max_size=2)
versions = st.sampled_from([v1, v2])
filters = often(
    st.sampled_from(
        [InterpolationMode.BILINEAR, InterpolationMode.BICUBIC, InterpolationMode.NEAREST]
    ),
    st.sampled_from([*InterpolationMode, Image.BILINEAR, Image.BICUBIC, Image.NEAREST]),
)
antialias = st.sampled_from([True, True, False, None])
floats = st.floats(0.01, 3)


def scaled_float() -> Any:
    return v2.ToDtype(torch.float32, scale=True)


def steps(make: Callable[..., Any], **options: Any) -> st.SearchStrategy[Make]:
    """Steps `make(version, **options)` with drawn options, less those that torchvision refuses."""

    def buildable(step: Make) -> bool:
        try:
            step()
        except (ValueError, TypeError):
            return False
        return True

    def bind(values: dict[str, Any]) -> Make:
        return lambda: make(**values)

    drawn = st.fixed_dictionaries({"version": versions}, optional=options)
    return drawn.map(bind).filter(buildable)


resizes = steps(
    lambda version, size=30, **options: version.Resize(size, **options),
    size=st.tuples(edges, edges) | edges | st.lists(edges, min_size=1, max_size=1),
    interpolation=filters,
    antialias=antialias,
    max_size=st.none() | st.integers(1, 60),
)
random_crops = steps(
    lambda version, size=24, **options: version.RandomResizedCrop(size, **options),
    size=sizes,
    scale=ranges(0, 1) | ranges(0.5, 3),
    ratio=ranges(0.2, 4),
    interpolation=filters,
    antialias=antialias,
)
center_crops = steps(lambda version, size=20: version.CenterCrop(size), size=sizes)
chances = st.floats(0, 1) | st.sampled_from([0, 1])
flips = steps(lambda version, p=0.5: version.RandomHorizontalFlip(p), p=chances) | steps(
    lambda version, p=0.5: version.RandomVerticalFlip(p), p=chances
)
margins = st.integers(-1, 9)
paddings = margins | st.tuples(margins, margins) | st.tuples(margins, margins, margins, margins)
fills = st.integers(0, 255) | st.tuples(*3 * [st.integers(0, 255)]) | st.none()
padding_modes = st.sampled_from(["constant", "edge", "reflect", "symmetric"])
pads = steps(
    lambda version, padding=2, **options: version.Pad(padding, **options),
    padding=paddings,
    fill=fills,
    padding_mode=padding_modes,
)
padded_crops = steps(
    lambda version, size=20, **options: version.RandomCrop(size, **options),
    size=sizes,
    padding=st.none() | paddings,
    pad_if_needed=st.booleans(),
    fill=fills,
    padding_mode=padding_modes,
)
normalizes = steps(
    lambda version, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4): version.Normalize(mean, std),
    mean=st.lists(floats, min_size=3, max_size=3) | st.lists(floats, min_size=1, max_size=2),
    std=often(st.lists(floats, min_size=3, max_size=3), st.just([0.1, 0.0, 0.2])),
)
dtypes = steps(
    lambda version, dtype=torch.float32, scale=True: v2.ToDtype(dtype, scale=scale),
    dtype=st.sampled_from([torch.uint8, torch.float16, torch.bfloat16, torch.float64]),
    scale=st.booleans(),
)
geometry = st.lists(center_crops | flips | random_crops | padded_crops | pads, max_size=2)
fixed_sizes = st.one_of(
    random_crops,
    center_crops,
    st.tuples(resizes, center_crops),
    padded_crops,
    st.tuples(pads | flips | resizes, padded_crops),
)
# Resize alone gives a size if it is told one for both edges; otherwise torch's loader is taken.
any_sizes = often(fixed_sizes, resizes)

to_float = st.sampled_from(
    [[v1.ToTensor], [v2.ToImage, scaled_float], [v1.PILToTensor, scaled_float], [v2.ToTensor]]
)
to_uint8 = st.sampled_from([v1.PILToTensor, v2.PILToTensor, v2.ToImage])
ends = to_float | to_uint8 | st.tuples(to_float, normalizes)
wild_ends = st.tuples(to_float | to_uint8, st.lists(dtypes | normalizes, max_size=2))


def flatten(parts: Any) -> list[Make]:
    if callable(parts):
        return [parts]
    return [step for part in parts for step in flatten(part)]


orders = st.tuples(any_sizes, geometry, ends | ends | wild_ends).map(flatten)
jumbled = orders.flatmap(st.permutations)  # mostly refused by torchvision, then by both alike


usual = st.tuples(fixed_sizes, geometry, ends).map(flatten)  # nearly all of them native


@st.composite
def pipelines(draw: st.DrawFn, wild: bool = True) -> Make:
    chosen = draw(often(orders, jumbled) if wild else usual)
    compose = draw(versions).Compose
    return lambda: compose([step() for step in chosen])


def foreign(pipeline: Make) -> Make:
    """The same in a form that headrace does not know, so that it takes torch's path."""

    def make() -> Any:
        transform = pipeline()
        return lambda image: transform(image)

    return make


# --- image files --------------------------------------------------------------------------------

# Noise is slow to make: pictures of a few sizes are, and their encodings are drawn.
cached_picture = cache(picture)
SIZES = [
    *((1, 1), (1, 2), (2, 1), (3, 70), (64, 1), (7, 9), (8, 8), (9, 7), (16, 16), (17, 15)),
    *((23, 40), (31, 31), (33, 48), (40, 23), (48, 33), (50, 50), (60, 41), (64, 64), (70, 66)),
]
LARGE_SIZES = [(3000, 40), (31, 3000), (1200, 900), (3000, 2001), (701, 1999)]


@cache
def cached_large_picture(size: tuple[int, int]) -> Image.Image:
    return cached_picture((64, 64), 3).resize(size, Image.Resampling.BICUBIC)


@cache
def file_of(
    size: tuple[int, int], seed: int, mode: str, kind: str, options: tuple[tuple[str, Any], ...]
) -> bytes:
    whole = cached_large_picture(size) if max(size) > 100 else cached_picture(size, seed)
    return encoded(whole.convert(mode), kind, **dict(options))


def files_of(
    sizes: list[tuple[int, int]], kind: str, modes: list[str], **options: Any
) -> st.SearchStrategy[bytes]:
    return st.builds(
        file_of,
        st.sampled_from(sizes),
        st.integers(0, 2),
        st.sampled_from(modes),
        st.just(kind),
        st.fixed_dictionaries(options).map(lambda chosen: tuple(chosen.items())),
    )


jpegs = files_of(
    SIZES,
    "JPEG",
    ["RGB", "RGB", "RGB", "RGB", "L", "CMYK"],
    quality=st.sampled_from([5, 30, 75, 95, 100]),
    subsampling=st.integers(0, 2),
    progressive=st.booleans(),
    optimize=st.booleans(),
    restart_marker_blocks=st.sampled_from([0, 0, 0, 1, 3]),
)
pngs = files_of(SIZES, "PNG", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"], optimize=st.booleans())
others = st.one_of(files_of(SIZES, kind, ["RGB", "L"]) for kind in ("BMP", "GIF", "WEBP", "TIFF"))
large = files_of(
    LARGE_SIZES, "JPEG", ["RGB", "RGB", "L", "CMYK"], quality=st.sampled_from([60, 90])
)


@st.composite
def damages(draw: st.DrawFn) -> bytes:
    """A file cut short, with flipped bits, or with bytes too many."""
    file = bytearray(draw(jpegs | jpegs | pngs))
    place = int(draw(st.floats(0, 1)) * (len(file) - 1))
    match draw(st.sampled_from(["cut", "flip", "flip", "insert"])):
        case "cut":
            del file[place:]
        case "flip":
            file[place] ^= draw(st.integers(1, 255))
        case "insert":
            file[place:place] = draw(st.binary(min_size=1, max_size=4))
    return bytes(file)


damaged = damages() | st.sampled_from(list(bad_files().values()))
good = often(jpegs, pngs)
most = st.integers(0, 9).flatmap(
    lambda number: damaged if number > 7 else others if number == 7 else good
)
intact_only, mixed = (
    st.lists(good, min_size=1, max_size=14),
    st.lists(most, min_size=1, max_size=14),
)


@st.composite
def file_lists(draw: st.DrawFn) -> list[bytes]:
    """The files of a dataset: mostly small, in a third of all lists intact ones alone."""
    files = draw(intact_only | mixed | mixed)
    if draw(st.integers(0, 15)) == 15:  # one of these is enough to take a while
        files.insert(draw(st.integers(0, len(files))), draw(large))
    return files


# --- datasets -----------------------------------------------------------------------------------

_directory = tempfile.TemporaryDirectory(prefix="headrace-strategies-")


def stored(content: bytes, extension: str) -> str:
    """The path of a file of this content."""
    name = hashlib.sha256(content).hexdigest()[:24] + extension
    path = Path(_directory.name, name)
    if not path.exists():
        path.write_bytes(content)
    return str(path)


def listed(kind: Any, samples: list[tuple[str, int]], transform: Any) -> Any:
    """A folder as if these were its files."""
    root = Path(_directory.name, "empty")
    (root / "class").mkdir(parents=True, exist_ok=True)
    if kind is DatasetFolder:
        folder = DatasetFolder(
            str(root), default_loader, (".jpg",), transform=transform, allow_empty=True
        )
    else:
        folder = kind(str(root), transform, allow_empty=True)
    folder.samples = samples
    folder.targets = [label for _, label in samples]
    return folder


KINDS = ["ImageFolder", "ImageFolder", "headrace.ImageFolder", "DatasetFolder"]
KINDS += ["Subset", "ConcatDataset", "bytes", "paths"]


@dataclass(frozen=True)
class Images:
    """A dataset of some kind over `files`; label n is file n's, modulo 3."""

    kind: str
    files: list[bytes]
    extensions: list[str]
    indices: list[int]

    def build(self, transform: Make) -> Any:
        paths = [
            stored(content, self.extensions[number % len(self.extensions)])
            for number, content in enumerate(self.files)
        ]
        samples = [(path, number % 3) for number, path in enumerate(paths)]
        match self.kind:
            case "ImageFolder":
                return listed(ImageFolder, samples, transform())
            case "headrace.ImageFolder":
                return listed(headrace.ImageFolder, samples, transform())
            case "DatasetFolder":
                return listed(DatasetFolder, samples, transform())
            case "Subset":
                return Subset(listed(ImageFolder, samples, transform()), self.indices)
            case "ConcatDataset":
                half = len(samples) // 2
                parts = [samples[:half], samples[half:], samples[:2]]
                folders = [listed(ImageFolder, part, transform()) for part in parts if part]
                return ConcatDataset(folders)
            case "bytes":
                of_bytes = [(file, number % 3) for number, file in enumerate(self.files)]
                return headrace.ImageDataset(of_bytes, transform())
        return headrace.ImageDataset(samples, transform())


@st.composite
def datasets(draw: st.DrawFn) -> Images:
    files = draw(file_lists())
    places = st.integers(-len(files), len(files) - 1)
    return Images(
        draw(st.sampled_from(KINDS)),
        files,
        draw(st.lists(st.sampled_from([".jpg", ".JPEG", ".png"]), min_size=1, max_size=3)),
        draw(st.lists(places, min_size=1, max_size=20)),
    )


# --- samplers and loaders -----------------------------------------------------------------------

mixup = v2.MixUp(num_classes=3)
MIXINGS = [mixup, v2.CutMix(num_classes=3), v2.RandomChoice([mixup, v2.CutMix(num_classes=3)])]


def mixed_by(mixing: Any) -> Callable[[Any], Any]:
    return lambda batch: mixing(*default_collate(batch))


def reseed(worker: int) -> None:
    torch.manual_seed(torch.initial_seed() + 7 * worker)


def sampler_of(name: str, dataset: Any) -> Any:
    size = len(dataset)
    match name:
        case "with replacement":
            return RandomSampler(dataset, replacement=True, num_samples=size + 3)
        case "weighted":
            return WeightedRandomSampler([1 + number % 4 for number in range(size)], size)
        case "subset":
            return SubsetRandomSampler(range(0, size, 2))
        case "a rank's":
            return DistributedSampler(dataset, 2, 1, seed=3)
    return [number * 5 % size for number in range(size + 2)]


def uneven_batches(size: int) -> list[list[int]]:
    return [[number, (number * 3 + 1) % size][: 1 + number % 2] for number in range(size)]


@dataclass(frozen=True)
class Settings:
    """Arguments of a loader.

    Attributes:
        options: torch's.
        sampler: its name for sampler_of(); "" for none; "batches" for a batch sampler.
        generator: the seed of one; None for none.
        mixing: what collates, besides the default.
        ours: arguments that change nothing in the batches.
        output: `dtype` and `memory_format`, by which batches are converted.
    """

    options: dict[str, Any]
    sampler: str = ""
    generator: int | None = None
    mixing: Any = None
    ours: dict[str, Any] = field(default_factory=dict)
    output: dict[str, Any] = field(default_factory=dict)

    def build(self, loader_type: Any, dataset: Any, **more: Any) -> Any:
        options = dict(self.options)
        if self.generator is not None:
            options["generator"] = torch.Generator().manual_seed(self.generator)
        if self.sampler == "batches":
            del options["batch_size"]
            options["batch_sampler"] = uneven_batches(len(dataset))
        elif self.sampler:
            options["sampler"] = sampler_of(self.sampler, dataset)
        if self.mixing is not None:
            options["collate_fn"] = mixed_by(self.mixing)
        if loader_type is not TorchLoader:
            options.update(self.ours, **self.output)
        elif self.output:
            options["collate_fn"] = self.converting(options.get("collate_fn", default_collate))
        return loader_type(dataset, **options, **more)

    def converting(self, collate: Any) -> Any:
        """Collates, and converts as `output` asks."""

        def convert(batch: Any) -> Any:
            collated = collate(batch)
            images, labels = collated
            dtype = self.output.get("dtype", images.dtype)
            converted = images.to(
                dtype if images.dtype.is_floating_point else images.dtype,
                memory_format=self.output.get("memory_format", torch.contiguous_format),
            )
            return type(collated)([converted, labels])

        return convert


@st.composite
def loader_settings(draw: st.DrawFn, ruled: bool = False) -> Settings:
    """Workers are processes of torch's, which take their time, in three of eight.

    Args:
        ruled: with rules for samples; what is then not native is left out.
    """
    options: dict[str, Any] = {
        "batch_size": draw(often(st.integers(1, 5), st.none())),
        "num_workers": draw(st.sampled_from([0, 0, 0, 0, 0, 1, 2, 3])),
    }
    sampler = ""
    if draw(st.booleans()):
        options["shuffle"] = draw(st.booleans())
    else:
        sampler = draw(
            st.sampled_from(["with replacement", "weighted", "subset", "a rank's", "repeated"])
        )
        if options["batch_size"] is not None and draw(st.integers(0, 5)) == 5:
            sampler = "batches"
    mixing = None
    if options["batch_size"] is not None:
        if sampler != "batches":
            options["drop_last"] = draw(st.booleans())
        mixing = draw(often(st.none(), st.sampled_from(MIXINGS))) if not ruled else None
    if options["num_workers"]:
        if not ruled:
            options["worker_init_fn"] = draw(often(st.none(), st.just(reseed)))
        options["prefetch_factor"] = draw(st.integers(1, 3))
        options["persistent_workers"] = draw(st.booleans())
        options["timeout"] = draw(st.sampled_from([0, 100]))
    ours = st.fixed_dictionaries(
        {},
        optional={
            "threads": st.integers(1, 5),
            "reader": st.sampled_from(["pread", "io_uring"]),
            "read_budget_bytes": st.sampled_from([1, 3000, 1 << 20]),
        },
    )
    output = st.fixed_dictionaries(
        {},
        optional={
            "dtype": st.sampled_from([torch.bfloat16, torch.float16, torch.float64]),
            "memory_format": st.just(torch.channels_last),
        },
    )
    return Settings(
        options,
        sampler,
        draw(st.none() | st.integers(0, 3)),
        mixing,
        draw(ours),
        draw(often(st.just({}), output)) if options["batch_size"] is not None else {},
    )
