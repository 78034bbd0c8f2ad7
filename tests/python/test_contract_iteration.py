"""Iteration: lengths, order, timeouts, relative paths, exceptions, and what is kept frozen."""

import gc
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset, Subset
from torchvision.datasets import ImageFolder

from headrace import DataLoader
from support import (
    Build,
    Raised,
    assert_same,
    assert_same_behaviour,
    begin,
    encoded,
    end,
    epochs,
    one_epoch,
    step,
    train,
    write_folder,
)


def loader_of(root: Any, **options: Any) -> Build:
    def build(loader_type: Any) -> Any:
        return loader_type(ImageFolder(root, train()), **{"batch_size": 4, **options})

    return build


# --- relative paths -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 2, "prefetch_factor": 1}, {"num_workers": 1, "shuffle": True}]
)
def test_relative_paths_begin_where_torchs_do(
    mixed_pictures: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Workers keep the directory of their start; without workers the present one counts."""
    classes = mixed_pictures.name
    other = tmp_path / classes
    for folder in sorted(mixed_pictures.iterdir()):
        (other / folder.name).mkdir(parents=True)
        for number, file in enumerate(sorted(folder.iterdir())):
            if number % 3:  # the others cannot be opened from there
                (other / folder.name / file.name).symlink_to(file)

    def drive(loader: Any) -> Iterator[Any]:
        for _ in range(2):
            monkeypatch.chdir(mixed_pictures.parent)
            iterator = begin(loader)
            yield step(iterator)
            monkeypatch.chdir(tmp_path)
            for _ in range(6):
                yield without_path(step(iterator))
            monkeypatch.chdir(mixed_pictures.parent)
            yield without_path(step(iterator))
            end(iterator)

    def build(loader_type: Any) -> Any:
        monkeypatch.chdir(mixed_pictures.parent)
        return loader_of(classes, **options)(loader_type)

    assert_same_behaviour(build, drive)


def without_path(event: Any) -> Any:
    """Pillow's message has the path that was opened: ours is complete after a change."""
    return (event.type, event.first) if isinstance(event, Raised) else event


# --- order ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_out_of_order_every_batch_comes_once(pictures: Path, workers: int) -> None:
    """Any order is allowed; headrace keeps the sampler's, and with it torch's bits."""
    build = loader_of(pictures, in_order=False, num_workers=workers, batch_size=3)
    loader: Any = build(DataLoader)
    assert loader.explain().native and loader.in_order is False
    torch.manual_seed(2)
    found = list(loader)
    torch.manual_seed(2)
    assert_same(found, list(loader_of(pictures, num_workers=workers, batch_size=3)(TorchLoader)))
    labels = sorted(label for _, batch in build(TorchLoader) for label in batch.tolist())
    assert sorted(label for _, batch in found for label in batch.tolist()) == labels


# --- timeout --------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [False, True])
def test_a_wait_longer_than_the_timeout_raises_and_can_be_repeated(
    tmp_path: Path, persistent: bool
) -> None:
    # Large enough not to be decoded before the first call of next().
    large = Image.effect_noise((3000, 3000), 90).convert("RGB")
    root = write_folder(tmp_path, {f"{i}.jpg": encoded(large, "JPEG") for i in range(3)})
    loader: Any = loader_of(
        root, timeout=1e-9, num_workers=2, persistent_workers=persistent, batch_size=1
    )(DataLoader)
    iterator = iter(loader)
    raised, batches = 0, []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        event = step(iterator)
        if isinstance(event, Raised):
            assert event == Raised(RuntimeError, *["DataLoader timed out after 1e-09 seconds"] * 2)
            raised += 1
        elif event == "the end":
            break
        else:
            batches.append(event)
    assert raised > 0
    assert len(batches) == len(loader)


# --- exceptions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_an_exception_does_not_end_iteration(pictures: Path, tmp_path: Path, workers: int) -> None:
    def build(loader_type: Any) -> Any:
        folder = ImageFolder(pictures, train())
        folder.samples[2] = (os.fspath(tmp_path / "missing"), 1)
        options = {"num_workers": workers}
        return loader_type(Subset(folder, range(6)), batch_size=2, **options)

    loader: Any = build(DataLoader)
    iterator = iter(loader)
    events = [step(iterator) for _ in range(4)]
    assert [type(event) for event in events] == [list, Raised, list, str]
    assert_same_behaviour(build)


# --- lengths --------------------------------------------------------------------------------------


class Counting(IterableDataset[int]):
    def __init__(self, length: int, told: int) -> None:
        self.length, self.told = length, told

    def __len__(self) -> int:
        return self.told

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("told", [5, 7, 9])
def test_an_iterable_datasets_length_and_its_warning(
    told: int, drop_last: bool, workers: int
) -> None:
    def warnings_of(loader_type: Any) -> list[str]:
        dataset = Counting(7, told)
        loader = loader_type(dataset, batch_size=2, drop_last=drop_last, num_workers=workers)
        assert len(loader) == (told // 2 if drop_last else (told + 1) // 2)
        with pytest.warns() as caught:
            import warnings

            warnings.warn("so that there is one", stacklevel=1)
            list(loader)
        return [str(one.message).replace(repr(loader.dataset), "it") for one in caught]

    def plain(texts: list[str]) -> list[str]:
        return [text.split(" was reported")[-1] for text in texts]

    assert plain(warnings_of(DataLoader)) == plain(warnings_of(TorchLoader))


class Lengthless:
    def __iter__(self) -> Iterator[int]:
        return iter([3, 1, 2])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_without_a_length_has_torchs_error(pictures: Path, workers: int) -> None:
    def drive(loader: Any) -> Iterator[Any]:
        for sized in (loader, begin(loader)):
            try:
                yield len(sized)
            except TypeError as error:
                yield str(error)
        yield from one_epoch(loader)

    build = loader_of(pictures, sampler=Lengthless(), num_workers=workers)
    assert_same_behaviour(build, drive)


# --- __getitems__ ---------------------------------------------------------------------------------


class AtOnce(list[int]):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] * 10 for index in indices]


def test_a_dataset_with_getitems_is_asked_once_a_batch() -> None:
    def build(loader_type: Any) -> Any:
        return loader_type(AtOnce(range(7)), batch_size=3)

    assert_same_behaviour(build, path="torch")
    assert next(iter(build(DataLoader))).tolist() == [0, 10, 20]


def test_a_method_getitems_that_is_added_is_asked(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reversed_items(self: Any, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices[::-1]]

    monkeypatch.setattr(ImageFolder, "__getitems__", reversed_items, raising=False)
    assert_same_behaviour(loader_of(pictures), epochs(1), path="torch")


# --- sampler --------------------------------------------------------------------------------------


class Recording:
    """A batch sampler that writes down what happens in which order."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def __len__(self) -> int:
        return 9

    def __iter__(self) -> Iterator[list[int]]:
        self.events.append("iter")
        for batch in range(9):
            self.events.append(f"pull {batch} {torch.rand(1).item()}")
            yield [batch, batch + 1]
        self.events.append("end")


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        {"num_workers": 1, "prefetch_factor": 1},
        {"num_workers": 2, "prefetch_factor": 3},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 3, "worker_init_fn": torch.manual_seed},
    ],
)
def test_the_sampler_runs_exactly_as_far_ahead_as_with_torch(
    pictures: Path, options: dict[str, Any]
) -> None:
    def build(loader_type: Any) -> Any:
        events: list[str] = []
        folder = ImageFolder(pictures, train())
        loader = loader_type(folder, batch_sampler=Recording(events), **options)
        loader.events = events
        return loader

    def drive(loader: Any) -> Iterator[Any]:
        for at_most in (3, 20):
            iterator = begin(loader)
            loader.events.append("made")
            for number in range(at_most):
                if step(iterator) == "the end":
                    break
                loader.events.append(f"got {number}")
            if not loader.persistent_workers:
                end(iterator)
            yield list(loader.events)

    assert_same_behaviour(build, drive)


# --- leaving --------------------------------------------------------------------------------------


def leave_by_break(iterator: Iterator[Any]) -> None:
    for _ in iterator:
        break


def leave_by_exception(iterator: Iterator[Any]) -> None:
    try:
        for _ in iterator:
            raise ArithmeticError
    except ArithmeticError:
        pass


def leave_at_once(iterator: Iterator[Any]) -> None:
    pass


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("leave", [leave_by_break, leave_by_exception, leave_at_once])
def test_a_loop_that_is_left_leaves_nothing(
    pictures: Path, leave: Callable[[Iterator[Any]], None], workers: int
) -> None:
    loader: Any = loader_of(pictures, num_workers=workers)(DataLoader)

    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    def grown() -> bool:
        return any(now > then for now, then in zip(held(), before, strict=True))

    gc.collect()  # what other tests left may go meanwhile
    leave(iter(loader))
    before = held()
    for _ in range(20):
        leave(iter(loader))
    deadline = time.monotonic() + 20
    while grown() and time.monotonic() < deadline:
        time.sleep(0.01)  # a joined thread is listed a little longer
    assert not grown(), (before, held())
