"""Memory, threads and descriptors stay flat, however often and in whatever way loaders are used."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isolated import Isolator
from lifetime import (
    COUNT,
    WORKERS,
    descriptors,
    eventually,
    io_threads,
    labels,
    make_loader,
    make_pictures,
    resident_bytes,
    same_batches,
    threads,
)

pytestmark = pytest.mark.parametrize("workers", WORKERS)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pictures(tmp_path_factory.mktemp("pictures"))


def assert_flat(act: Callable[[], Any], repeat: int) -> None:
    """Repetitions take no more memory, threads or descriptors.

    A leak shows in every round; allocators and lazily mapped pages show in one or the other.
    """
    for _ in range(repeat // 4):
        act()
    assert eventually(lambda: not io_threads())
    files, names = descriptors(), threads()
    growths = []
    for _ in range(3):
        before = resident_bytes()
        for _ in range(repeat):
            act()
        assert eventually(lambda: not io_threads())
        growths.append(resident_bytes() - before)
    print(f"{[growth >> 10 for growth in growths]} KiB more after {repeat} repetitions each")
    assert min(growths) < 256 << 10
    assert descriptors() == files
    assert len(threads()) <= len(names) + 1, threads()


def make_and_drop(folder: str, workers: int) -> None:
    """Thousands of iterators, of which every fifth gives a batch."""
    loader = make_loader(folder, workers)

    def act() -> None:
        for _ in range(4):
            iter(loader)
        next(iter(loader))

    assert_flat(act, repeat=160)  # 2,600 iterators


def test_thousands_of_short_lived_iterators_leave_nothing(
    isolated: Isolator, folder: Path, workers: int
) -> None:
    isolated(make_and_drop, folder, workers)


def make_loaders(folder: str, workers: int) -> None:
    def act() -> None:
        loader = make_loader(folder, workers)
        assert labels([next(iter(loader))]) == [0, 1, 2, 3]

    assert_flat(act, repeat=60)


def test_short_lived_loaders_leave_nothing(isolated: Isolator, folder: Path, workers: int) -> None:
    isolated(make_loaders, folder, workers)


def read_epochs(folder: str, workers: int) -> None:
    loader = make_loader(folder, workers)

    assert_flat(lambda: labels(loader), repeat=310)  # a thousand epochs
    iterator = iter(loader)
    held = next(iterator)
    assert "/dev/shm/" not in Path("/proc/self/maps").read_text(), held
    if workers:
        persistent = make_loader(folder, workers, persistent_workers=True)
        labels(persistent)
        running = threads()
        growths = []
        for _ in range(3):
            before = resident_bytes()
            for _ in range(40):
                labels(persistent)
            growths.append(resident_bytes() - before)
        assert min(growths) < 256 << 10, growths
        assert threads() == running


def test_epochs_take_no_more_memory_than_the_first(
    isolated: Isolator, folder: Path, workers: int
) -> None:
    isolated(read_epochs, folder, workers)


def fail_often(folder: str, workers: int) -> None:
    """Every sample of some batches fails, a thousand in all."""
    for number in range(0, COUNT, 2):
        Path(folder, f"{number:04}", "x.jpg").write_bytes(b"no picture")
    loader = make_loader(folder, workers, batch_size=1)

    def act() -> None:
        iterator = iter(loader)
        failures = 0
        for number in range(COUNT):
            try:
                assert labels([next(iterator)]) == [number]
            except OSError:
                failures += 1
        assert failures == COUNT // 2
        assert next(iterator, None) is None

    assert_flat(act, repeat=28)


def test_failing_samples_leave_nothing(isolated: Isolator, tmp_path: Path, workers: int) -> None:
    isolated(fail_often, make_pictures(tmp_path), workers)


def reuse_batches(folder: str, workers: int) -> None:
    loader = make_loader(folder, workers)
    for _ in range(3):
        labels(loader)
    pool = loader._buffer_pool()
    before = pool.stats()
    for _ in range(10):
        labels(loader)
    after = pool.stats()
    assert after["allocations"] == before["allocations"], "freed batches were not used again"
    assert after["live_blocks"] == 0
    assert after["idle_blocks"] <= 2 * (max(1, workers) * 2 + 8)


def test_the_memory_of_freed_batches_is_used_again(
    isolated: Isolator, folder: Path, workers: int
) -> None:
    isolated(reuse_batches, folder, workers)


def hold_many(folder: str, workers: int) -> None:
    loader = make_loader(folder, workers, batch_size=1)
    pool = loader._buffer_pool()
    batches: list[Any] = [batch for _ in range(20) for batch in loader]
    assert pool.stats()["live_blocks"] == 2 * len(batches)
    batches.clear()
    stats = pool.stats()
    assert stats["live_blocks"] == 0
    assert stats["idle_blocks"] < 50, "idle memory grows with what was once held"


def test_idle_memory_is_bounded_after_many_batches_were_held(
    isolated: Isolator, folder: Path, workers: int
) -> None:
    isolated(hold_many, folder, workers)


def starve(folder: str, workers: int) -> None:
    import torch

    epochs = []
    for budget in (1, 64 << 20):
        torch.manual_seed(1)
        epochs.append(list(make_loader(folder, workers, read_budget_bytes=budget)))
    assert same_batches(*epochs)


def test_a_budget_of_one_byte_gives_the_same_batches(
    isolated: Isolator, folder: Path, workers: int
) -> None:
    isolated(starve, folder, workers)
