"""Exceptions: types, texts and turns as torch's, whatever is raised and wherever."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, Subset
from torchvision.datasets import ImageFolder

from headrace import DataLoader
from support import assert_same_behaviour, begin, end, epochs, step, train


class NeedsTwo(Exception):
    """Cannot be built from one string: torch makes a RuntimeError of it."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} and {other}")


class Multiline(ValueError):
    def __str__(self) -> str:
        return "first\nlast"


class Unprintable(ValueError):
    def __str__(self) -> str:
        raise TypeError("no text")


ERRORS: dict[str, Any] = {
    "plain": lambda: ArithmeticError("seven"),
    "key": lambda: KeyError("seven\nor eight"),
    "index": lambda: IndexError(7),
    "two arguments": lambda: NeedsTwo("seven", "eight"),
    "no argument": lambda: LookupError(),
    "several lines": lambda: Multiline(),
    "without a text": lambda: Unprintable(),
    "the system's": lambda: FileNotFoundError(2, "not there", "file"),
    "the end": lambda: StopIteration("seven"),
    "the end of an async loop": lambda: StopAsyncIteration(),
    "memory": lambda: MemoryError("seven"),
    "unicode": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "odd"),
}


class Raises:
    """A key that raises where it is used: by headrace's path in front of the dataset as well."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __index__(self) -> int:
        raise ERRORS[self.kind]()

    def __repr__(self) -> str:
        raise TypeError("it is not to be looked at")


class Numbers(Dataset[Any]):
    def __getitem__(self, key: Any) -> Any:
        return [10, 11, 12, 13, 14][key]

    def __len__(self) -> int:
        return 5


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("path", ["native", "torch"])
def test_every_kind_of_exception_is_torchs(pictures: Path, path: str, workers: int) -> None:
    """Each has its turn with its type, and the batches behind it follow."""
    keys = [key for kind in ERRORS for key in (0, 1, Raises(kind), 2, 3)]

    def build(loader_type: Any) -> Any:
        dataset = ImageFolder(pictures, train()) if path == "native" else Numbers()
        return loader_type(dataset, 2, sampler=keys, num_workers=workers)

    def drive(loader: Any) -> Iterator[Any]:
        iterator = begin(loader)
        for _ in range(len(keys) // 2 + 2):
            try:
                event = step(iterator)
            except Exception as error:  # its own text cannot be had
                event = type(error)
            yield event
        end(iterator)

    assert_same_behaviour(build, drive, path)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("path", ["native", "torch"])
def test_the_original_traceback_is_in_the_text(pictures: Path, path: str, workers: int) -> None:
    def text(loader_type: Any) -> str:
        dataset: Any = ImageFolder(pictures, train()) if path == "native" else Numbers()
        loader = loader_type(dataset, sampler=[Raises("plain")], num_workers=workers)
        with pytest.raises(ArithmeticError) as raised:
            next(iter(loader))
        assert raised.value.__cause__ is None
        return str(raised.value)

    for loader_type in (DataLoader, TorchLoader):
        found = text(loader_type)
        if workers == 0:
            assert found == "seven"
            continue
        first, second, *_, last = found.splitlines()
        assert first == "Caught ArithmeticError in DataLoader worker process 0."
        assert second == "Original Traceback (most recent call last):"
        assert "raise ERRORS[self.kind]()" in found
        assert last == "ArithmeticError: seven"


class Stops:
    """A sampler that raises in the middle, at whatever call that is."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __iter__(self) -> Iterator[Any]:
        yield from [0, 1, 2]
        raise ERRORS[self.kind]()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["key", "the end"])
def test_exceptions_of_a_sampler_are_torchs(pictures: Path, kind: str, workers: int) -> None:
    def build(loader_type: Any) -> Any:
        folder = ImageFolder(pictures, train())
        return loader_type(folder, 1, sampler=Stops(kind), num_workers=workers)

    assert_same_behaviour(build, epochs(2, at_most=6))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_empty_dataset_is_an_epoch_without_batches(pictures: Path, workers: int) -> None:
    """In order; to shuffle it is an error of torch's sampler."""

    def build(loader_type: Any) -> Any:
        empty = Subset(ImageFolder(pictures, train()), [])
        with pytest.raises(ValueError, match="num_samples"):
            loader_type(empty, 3, shuffle=True)
        return loader_type(empty, 3, num_workers=workers)

    assert_same_behaviour(build)


# --- what Pillow decides --------------------------------------------------------------------------

MAGIC = b"headrace test"


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """A format of its own for Pillow; gets the threads that opened a file of it."""
    threads: list[threading.Thread] = []

    def factory(file: Any, name: Any = None) -> Image.Image:
        threads.append(threading.current_thread())
        content = file.read()
        if content.endswith(b"bad"):
            raise OSError("a bad file of its own format")
        return Image.new("RGB", (20, 30), tuple(content[-3:]))

    Image.init()
    monkeypatch.setitem(Image.OPEN, "OWN", (factory, lambda prefix: prefix.startswith(MAGIC)))
    monkeypatch.setattr(Image, "ID", [*Image.ID, "OWN"])
    return threads


@pytest.mark.parametrize("workers", [0, 2])
def test_formats_of_pillows_plugins_are_opened_on_the_consumers_thread(
    pictures: Path, tmp_path: Path, plugin: list[threading.Thread], workers: int
) -> None:
    """By Pillow itself, whose plugins need not bear several threads."""
    files = [tmp_path / f"{name}.jpg" for name in ("one", "bad")]
    files[0].write_bytes(MAGIC + b"\x10\x20\x30")
    files[1].write_bytes(MAGIC + b"bad")

    def build(loader_type: Any) -> Any:
        folder = ImageFolder(pictures, train())
        folder.samples[3] = str(files[0]), 1
        folder.samples[9] = str(files[1]), 2
        return loader_type(folder, 4, num_workers=workers, shuffle=True)

    assert_same_behaviour(build)
    assert plugin and set(plugin) == {threading.current_thread()}
