"""Runs torch's DataLoader and headrace's on the same input and compares all that can be seen."""

import contextlib
import io
import random
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchLoader
from torchvision import transforms as v1
from torchvision.transforms import v2

from headrace import DataLoader

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Build = Callable[[type[TorchLoader[Any]]], TorchLoader[Any]]
Drive = Callable[[TorchLoader[Any]], Iterator[Any]]


# --- what is compared ---------------------------------------------------------------------------


@dataclass
class Raised:
    """An exception as a caller sees it: its type, the first line of its text and the last.

    Addresses of objects, which messages may have, are left out.
    """

    type: type[BaseException]
    first: str
    last: str

    @classmethod
    def of(cls, error: BaseException) -> "Raised":
        lines = without_addresses(str(error)).strip().splitlines() or [""]
        return cls(type(error), lines[0], lines[-1])


def without_addresses(text: str) -> str:
    return re.sub(" at 0x[0-9a-f]+", "", text)


@dataclass
class Step:
    """One event of an iteration, and where it left the random generators."""

    event: Any
    torch_state: torch.Tensor
    other_states: tuple[Any, ...]


def observe(
    build: Build, drive: Drive, loader_type: type[TorchLoader[Any]]
) -> tuple[list[Step], set[str]]:
    """Every event that `drive` yields for a new loader, from fixed seeds; Pillow's warnings."""
    torch.manual_seed(1234)
    random.seed(1234)
    np.random.seed(1234)  # noqa: NPY002  workers and users have this one
    steps = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = build(loader_type)
        events = drive(loader)
        while True:
            try:
                event = next(events)
            except StopIteration:
                break
            numpy_state = np.random.get_state()  # noqa: NPY002
            others = (random.getstate(), numpy_state[1].tobytes(), numpy_state[2])
            steps.append(Step(event, torch.get_rng_state(), others))
    end(loader._iterator)
    from_pillow = {str(one.message) for one in caught if "/PIL/" in one.filename}
    return steps, from_pillow


def assert_same_behaviour(build: Build, drive: Drive | None = None, path: str = "native") -> None:
    """torch's loader and headrace's behave the same, to the last bit.

    Args:
        build: makes a new loader of the class that it is given, with its own dataset and sampler.
        drive: what a caller does with the loader, yielding what is to be compared.
        path: the path that headrace must take.
    """
    drive = drive or epochs(2)
    expected, expected_warnings = observe(build, drive, TorchLoader)
    loaders = []

    def build_and_explain(loader_type: type[TorchLoader[Any]]) -> TorchLoader[Any]:
        loaders.append(build(loader_type))
        assert loaders[0].explain().path == path
        return loaders[0]

    found, found_warnings = observe(build_and_explain, drive, DataLoader)
    assert_same_events(found, expected)
    if loaders[0].num_workers == 0:  # workers warn in processes of their own
        assert expected_warnings <= found_warnings


def assert_same_events(found: list[Step], expected: list[Step]) -> None:
    """The same events in the same order, each of which left the generators alike."""
    assert len(found) == len(expected), f"{len(found)} events instead of {len(expected)}"
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        where = f"event {number}"
        assert_same(one.event, other.event, where)
        assert torch.equal(one.torch_state, other.torch_state), f"{where}: torch's generator"
        assert one.other_states == other.other_states, f"{where}: random and numpy"


def assert_same(found: Any, expected: Any, where: str = "") -> None:
    """Equal with all types, dtypes, shapes, strides and bits."""
    assert type(found) is type(expected), f"{where}: {type(found)} instead of {type(expected)}"
    if isinstance(expected, torch.Tensor):
        for name in ("dtype", "shape", "layout", "device", "requires_grad"):
            assert getattr(found, name) == getattr(expected, name), f"{where}: other {name}"
        assert found.stride() == expected.stride(), f"{where}: other strides"
        assert found.is_inference() == expected.is_inference(), f"{where}: inference mode"
        assert bits(found) == bits(expected), f"{where}: other values"
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype and found.shape == expected.shape, where
        assert found.tobytes() == expected.tobytes(), f"{where}: other values"
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), f"{where}: {len(found)} instead of {len(expected)}"
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, f"{where}[{number}]")
    elif isinstance(expected, dict):
        assert list(found) == list(expected), where
        for key in expected:
            assert_same(found[key], expected[key], f"{where}[{key!r}]")
    else:
        assert found == expected, f"{where}: {found!r} instead of {expected!r}"


def bits(tensor: torch.Tensor) -> bytes:
    values = tensor.detach().contiguous().clone().view(-1)  # numpy lacks bfloat16
    return values.view(torch.uint8).numpy().tobytes()


# --- what a caller does -------------------------------------------------------------------------


def step(iterator: Iterator[Any]) -> Any:
    """What the next call of next() gives: a batch, an exception or the word that it is over."""
    try:
        return next(iterator)
    except StopIteration:
        return "the end"
    except Exception as error:
        return Raised.of(error)


def begin(loader: TorchLoader[Any]) -> Any:
    """iter(loader), or the exception that it raises."""
    try:
        return iter(loader)
    except Exception as error:
        return Raised.of(error)


def one_epoch(loader: TorchLoader[Any], at_most: int = 100) -> Iterator[Any]:
    iterator = begin(loader)
    if isinstance(iterator, Raised):
        yield iterator
        return
    try:
        yield len(iterator)
    except TypeError:
        yield "no length"
    for _ in range(at_most):
        event = step(iterator)
        yield event
        if event == "the end":
            yield step(iterator)  # it stays over
            return
    yield "left"
    if not loader.persistent_workers:
        end(iterator)


def end(iterator: Any) -> None:
    """Ends the workers of torch's iterator at once.

    One that raised is part of a cycle. Left to the garbage collector it waits in vain for its
    workers, and when a later worker process collects it, it stops the workers of others.
    """
    if hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()


def epochs(count: int, at_most: int = 100) -> Drive:
    """Epochs of `at_most` steps each, going on after exceptions as torch allows."""

    def drive(loader: TorchLoader[Any]) -> Iterator[Any]:
        for epoch in range(count):
            if hasattr(loader.sampler, "set_epoch"):
                loader.sampler.set_epoch(epoch)
            yield from one_epoch(loader, at_most)

    return drive


# --- pipelines ----------------------------------------------------------------------------------


def train(size: int = 24) -> Any:
    return v1.Compose(
        [
            v1.RandomResizedCrop(size),
            v1.RandomHorizontalFlip(),
            v1.ToTensor(),
            v1.Normalize(MEAN, STD),
        ]
    )


def train_uint8(size: int = 24) -> Any:
    return v1.Compose([v1.RandomResizedCrop(size), v1.RandomHorizontalFlip(), v1.PILToTensor()])


def evaluation(size: int = 24) -> Any:
    return v1.Compose(
        [v1.Resize(size + 4), v1.CenterCrop(size), v1.ToTensor(), v1.Normalize(MEAN, STD)]
    )


def train_v2(size: int = 24) -> Any:
    return v2.Compose(
        [
            v2.RandomResizedCrop(size, antialias=True),
            v2.RandomHorizontalFlip(0.4),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )


def train_v2_uint8(size: int = 24) -> Any:
    return v2.Compose([v2.RandomResizedCrop(size), v2.RandomHorizontalFlip(), v2.ToImage()])


def evaluation_v2_uint8(size: int = 24) -> Any:
    return v2.Compose([v2.Resize(size + 4), v2.CenterCrop(size), v2.PILToTensor()])


PIPELINES = [train, train_uint8, evaluation, train_v2, train_v2_uint8, evaluation_v2_uint8]


# --- pictures -----------------------------------------------------------------------------------


def picture(size: tuple[int, int], seed: int, mode: str = "RGB") -> Image.Image:
    """Waves with noise: something for filters, clipping and chroma to do."""
    generator = np.random.default_rng(seed)
    y, x = np.mgrid[0 : size[1], 0 : size[0]]
    phases = generator.uniform(0, 6, 3)
    waves = 120 * np.sin(x[..., None] / 7 + y[..., None] / 5 + phases) + 128
    noise = generator.normal(0, 25, waves.shape)
    pixels = (waves + noise).clip(0, 255).astype(np.uint8)
    return Image.fromarray(pixels).convert(mode)


def jpeg(size: tuple[int, int], seed: int, mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    picture(size, seed, mode).save(file, "JPEG", **options)
    return file.getvalue()


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def good_files() -> dict[str, bytes]:
    """JPEG files of varied sizes and kinds, all of them decoded natively."""
    rng = random.Random(7)
    files = {}
    for number in range(20):
        size = rng.randint(9, 70), rng.randint(9, 70)
        files[f"{number:02}.jpg"] = jpeg(
            size,
            number,
            mode="L" if number % 7 == 3 else "RGB",
            quality=rng.choice((40, 75, 95)),
            subsampling=number % 3,
            progressive=number % 4 == 1,
        )
    files["20 one pixel.jpg"] = jpeg((1, 1), 20)
    files["21 long.jpeg"] = jpeg((300, 3), 21)
    files["22 cmyk.JPG"] = jpeg((31, 40), 22, mode="CMYK")
    return files


def bad_files() -> dict[str, bytes]:
    """Files that are not plain JPEG. Pillow refuses some and opens others."""
    whole = jpeg((60, 50), 1, quality=90)
    flipped = bytearray(whole)
    flipped[len(whole) // 2 : len(whole) // 2 + 40] = bytes(range(40))
    deep = Image.fromarray((np.arange(40 * 30, dtype=np.uint16) * 50).reshape(30, 40))
    palette = picture((33, 22), 5).quantize(16)
    return {
        "empty.jpg": b"",
        "half.jpg": whole[: len(whole) // 2],
        "header only.jpg": whole[:200],
        "no end.jpg": whole[:-2],
        "tail cut.jpg": whole[:-40],
        "flipped bytes.jpg": bytes(flipped),
        "garbage.jpg": random.Random(3).randbytes(500),
        "text.jpg": b"this is no image\n" * 10,
        "trailing.jpg": whole + b"garbage after the end" * 9,
        "png.jpg": encoded(picture((41, 27), 2), "PNG"),
        "deep.png": encoded(deep, "PNG"),
        "palette.png": encoded(palette, "PNG", transparency=3),
        "alpha.png": encoded(picture((20, 30), 4, "RGBA"), "PNG"),
        "truncated.png": encoded(picture((41, 27), 2), "PNG")[:300],
        "bitmap.bmp": encoded(picture((30, 20), 6), "BMP"),
        "web.webp": encoded(picture((30, 25), 6), "WEBP"),
        "gif.jpg": encoded(picture((28, 25), 6, "P"), "GIF"),
    }


def write_folder(root: Path, files: dict[str, bytes], classes: int = 3) -> Path:
    """An image folder with `files` spread over `classes` folders, in order of their names."""
    for number in range(classes):
        (root / f"class {number}").mkdir(parents=True)
    for number, (name, content) in enumerate(sorted(files.items())):
        (root / f"class {number * classes // len(files)}" / name).write_bytes(content)
    return root


@contextlib.contextmanager
def changed(owner: Any, **values: Any) -> Iterator[None]:
    """Attributes of `owner` set to `values` meanwhile."""
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)
