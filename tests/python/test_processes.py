"""Processes end clean, however they are left, and fork beside a loader and read on."""

import atexit
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from headrace import DataLoader, Error
from isolated import Isolator
from lifetime import (
    COUNT,
    WORKERS,
    in_child,
    labels,
    make_loader,
    run_side_by_side,
    started,
)

pytestmark = pytest.mark.parametrize("workers", WORKERS)

held: list[Any] = []  # until the interpreter's very end


# --- the interpreter's end ------------------------------------------------------------------------


def end_with_live_iterator(folder: str, workers: int) -> None:
    held.append(started(make_loader(folder, workers)))


def end_with_unstarted_iterator(folder: str, workers: int) -> None:
    held.append(iter(make_loader(folder, workers)))


def end_with_iterator_in_cycle(folder: str, workers: int) -> None:
    cycle = [started(make_loader(folder, workers))]
    cycle.append(cycle)


def end_with_persistent_iterator(folder: str, workers: int) -> None:
    loader = make_loader(folder, workers, persistent_workers=workers > 0)
    started(loader)
    held.append(loader)


def end_with_batches(folder: str, workers: int) -> None:
    held.append(list(make_loader(folder, workers)))


def end_with_interrupted_thread(folder: str, workers: int) -> None:
    """A daemon thread is inside next() when the interpreter ends."""
    inside = threading.Event()

    def consume() -> None:
        loader = make_loader(folder, workers)
        while True:
            for _ in loader:
                inside.set()

    threading.Thread(target=consume, daemon=True).start()
    assert inside.wait(30)


def end_reading_on(folder: str, workers: int) -> None:
    """The exit handler of a program that imported headrace late: it runs after headrace's own."""
    loader = make_loader(folder, workers)
    held.append(started(loader))
    from headrace import iterator as module

    atexit.unregister(module._close_all)
    atexit.register(lambda: held.append(started(loader)))
    atexit.register(module._close_all)


@pytest.mark.parametrize(
    "scenario",
    [
        end_with_live_iterator,
        end_with_unstarted_iterator,
        end_with_iterator_in_cycle,
        end_with_persistent_iterator,
        end_with_batches,
        end_reading_on,
    ],
)
def test_the_interpreter_ends_clean(
    isolated: Isolator, numbered_pictures: Path, workers: int, scenario: Callable[..., None]
) -> None:
    isolated(scenario, numbered_pictures, workers)


def test_the_interpreter_ends_clean_while_a_daemon_thread_waits(
    isolated: Isolator, numbered_pictures: Path, large_pictures: Path, workers: int
) -> None:
    isolated(end_with_interrupted_thread, large_pictures, workers)
    for _ in range(5):
        isolated(end_with_interrupted_thread, numbered_pictures, workers)


def leave_by_sys_exit(folder: str, workers: int) -> None:
    for _ in make_loader(folder, workers):
        sys.exit(3)


def leave_by_os_exit(folder: str, workers: int) -> None:
    for _ in make_loader(folder, workers):
        os._exit(4)


def leave_by_exception(folder: str, workers: int) -> None:
    for _ in make_loader(folder, workers):
        raise ArithmeticError("a training step failed")


def leave_by_ctrl_c(folder: str, workers: int) -> None:
    for _ in make_loader(folder, workers):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("scenario", "status"),
    [
        (leave_by_sys_exit, 3),
        (leave_by_os_exit, 4),
        (leave_by_exception, 1),
        (leave_by_ctrl_c, -signal.SIGINT),
    ],
)
def test_the_program_can_leave_the_loop_in_any_way(
    isolated: Isolator,
    numbered_pictures: Path,
    workers: int,
    scenario: Callable[..., None],
    status: int,
) -> None:
    isolated(scenario, numbered_pictures, workers, status=status)


# --- forks ----------------------------------------------------------------------------------------


def fork_and_use_parents_iterator(folder: str, workers: int) -> None:
    iterator = started(make_loader(folder, workers))

    def child() -> None:
        try:
            next(iterator)
        except Error as error:
            assert error.code == "stopped"
            assert "forked" in str(error) and "iter(loader)" in str(error), error
        else:
            raise AssertionError("a forked child got a batch of its parent's threads")

    assert in_child(child) == 0
    assert labels(iterator) == list(range(4, COUNT))


def test_a_forked_child_hears_that_the_iterator_is_its_parents(
    isolated: Isolator, numbered_pictures: Path, workers: int
) -> None:
    isolated(fork_and_use_parents_iterator, numbered_pictures, workers)


def fork_under_load(folder: str, workers: int) -> None:
    """Children of a process whose threads hold all kinds of locks, again and again."""
    persistent = workers > 0
    loader = make_loader(folder, workers, persistent_workers=persistent)
    expected = labels(loader)
    stop = threading.Event()

    def load() -> None:
        # Persistent, so that no thread holds the lock of torch's generator in the moment of a fork:
        # the child could never draw again.
        other = make_loader(folder, 2, persistent_workers=True)
        while not stop.is_set():
            for _ in other:
                pass

    thread = threading.Thread(target=load)
    thread.start()

    def read_epoch() -> None:
        assert labels(loader) == expected  # a persistent iterator is made anew
        assert labels(make_loader(folder, workers)) == expected

    def free_and_exit() -> None:
        batches.clear()
        iterators.clear()
        gc.collect()

    for number in range(8):
        iterators = [iter(loader)]
        batches = [next(iterators[0])]
        for act in (read_epoch, free_and_exit, lambda: None):
            assert in_child(act, at_once=number > 0) == 0
        assert labels(iterators[0]) == expected[4:]
    stop.set()
    thread.join()


def test_forked_children_read_free_and_exit_while_the_parent_is_under_load(
    isolated: Isolator, numbered_pictures: Path, workers: int
) -> None:
    isolated(fork_under_load, numbered_pictures, workers)


def fork_twice(folder: str, workers: int) -> None:
    loader = make_loader(folder, workers)
    held.append(started(loader))

    def grandchild() -> None:
        assert labels(loader) == list(range(COUNT))

    def child() -> None:
        held.append(started(loader))
        assert in_child(grandchild) == 0
        assert labels(loader) == list(range(COUNT))

    assert in_child(child) == 0


def test_a_forked_childs_child_reads_too(
    isolated: Isolator, numbered_pictures: Path, workers: int
) -> None:
    isolated(fork_twice, numbered_pictures, workers)


class Nested(Dataset[Any]):
    """Each sample is an epoch of a headrace loader, read inside torch's worker process."""

    def __init__(self, folder: str, workers: int) -> None:
        self.loader = make_loader(folder, workers)

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> list[int]:
        return labels(self.loader)


def fork_torch_workers(folder: str, workers: int) -> None:
    """torch's workers fork beside a running native iterator, and run one of their own."""
    beside = started(make_loader(folder, workers))
    nested = Nested(folder, workers)
    held.append(started(nested.loader))
    plain = torch.utils.data.DataLoader(nested, batch_size=None, num_workers=2)
    for sample in plain:
        assert sample == list(range(COUNT))
    assert labels(beside) == list(range(4, COUNT))


def test_torchs_workers_fork_beside_the_loader_and_run_one_themselves(
    isolated: Isolator, numbered_pictures: Path, workers: int
) -> None:
    isolated(fork_torch_workers, numbered_pictures, workers)


def read_in_spawned_process(loader: DataLoader[Any], queue: Any) -> None:
    queue.put(labels(loader))


def spawn_with_loader(folder: str, workers: int) -> None:
    loader = make_loader(folder, workers)
    held.append(started(loader))
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=read_in_spawned_process, args=(loader, queue))
    process.start()
    assert queue.get(timeout=60) == list(range(COUNT))
    process.join()
    assert process.exitcode == 0
    queue.close()
    queue.join_thread()
    assert labels(pickle.loads(pickle.dumps(loader))) == list(range(COUNT))


def test_a_spawned_process_reads_a_loader_that_was_pickled_to_it(
    isolated: Isolator, numbered_pictures: Path, workers: int
) -> None:
    isolated(spawn_with_loader, numbered_pictures, workers)


def read_as_a_child(folder: str, workers: int) -> None:
    """The whole of it once more on plain threads, which forked children have instead of oneTBB."""
    held.append(started(make_loader(folder, workers)))
    assert in_child(lambda: run_side_by_side(folder, workers)) == 0


def test_loaders_run_side_by_side_in_a_forked_child(
    isolated: Isolator, numbered_pictures: Path, workers: int
) -> None:
    isolated(read_as_a_child, numbered_pictures, workers)
