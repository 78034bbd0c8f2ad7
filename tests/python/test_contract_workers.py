"""worker_init_fn: run once a worker by torch, and its random state gone on from."""

import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ImageFile
from torch.utils.data import Subset, get_worker_info
from torchvision.datasets import ImageFolder

from headrace import DataLoader
from headrace.worker_iterator import WorkerIterator
from support import (
    Build,
    Raised,
    assert_same_behaviour,
    begin,
    changed,
    end,
    epochs,
    observe,
    one_epoch,
    step,
    train,
)


def loader_of(root: Path, function: Any, **options: Any) -> Build:
    def build(loader_type: Any) -> Any:
        return loader_type(
            Subset(ImageFolder(root, train()), range(18)),
            **{"batch_size": 4, "num_workers": 2, "worker_init_fn": function, **options},
        )

    return build


def path_taken(build: Build) -> str:
    """The path after the function was tried."""
    loader: Any = build(DataLoader)
    iterator = iter(loader)
    native = type(iterator) is WorkerIterator
    end(iterator)
    assert loader.explain().native == native
    return "native" if native else "torch"


# --- functions that only seed ---------------------------------------------------------------------


def nothing(worker: int) -> None:
    pass


def seed_all(worker: int) -> None:
    seed = torch.initial_seed() % 2**32 + worker
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


def from_numpy(worker: int) -> None:
    torch.manual_seed(np.random.get_state()[1][0] + worker)  # noqa: NPY002


def by_info(worker: int) -> None:
    info = get_worker_info()
    assert info is not None and info.id == worker and info.num_workers == 2
    assert info.seed == torch.initial_seed() and len(info.dataset) == 18
    torch.manual_seed(info.seed + 1000 * info.id)


def draw_normals(worker: int) -> None:
    torch.randn(3 + worker)


def set_affinity(worker: int) -> None:
    os.sched_setaffinity(0, os.sched_getaffinity(0))
    torch.set_num_threads(2)


SEEDING = [nothing, seed_all, from_numpy, by_info, draw_normals, set_affinity]


@pytest.mark.parametrize("function", SEEDING)
def test_functions_that_seed_stay_native(
    mixed_pictures: Path, function: Callable[[int], None]
) -> None:
    build = loader_of(mixed_pictures, function, shuffle=True)
    assert path_taken(build) == "native"
    assert_same_behaviour(build)


@pytest.mark.parametrize(
    "options",
    [
        {"persistent_workers": True, "shuffle": True},
        {"batch_size": None, "num_workers": 1, "prefetch_factor": 3},
        {"generator": torch.Generator().manual_seed(4), "timeout": 60, "pin_memory": True},
        {"multiprocessing_context": "fork"},
        {"num_workers": 0},
    ],
)
def test_every_option_goes_with_a_worker_init_fn(pictures: Path, options: dict[str, Any]) -> None:
    def build(loader_type: Any) -> Any:
        if "generator" in options:
            options["generator"].manual_seed(4)
        return loader_of(pictures, seed_all, **options)(loader_type)

    assert_same_behaviour(build, epochs(2, at_most=3))


def test_closures_and_partials_are_called(pictures: Path) -> None:
    def offset(extra: int, worker: int) -> None:
        torch.manual_seed(extra + worker)

    assert_same_behaviour(loader_of(pictures, partial(offset, 7)))
    assert_same_behaviour(loader_of(pictures, lambda worker: offset(3, worker)))


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("changes", [False, True])
def test_it_runs_once_a_worker(
    pictures: Path, tmp_path: Path, changes: bool, persistent: bool
) -> None:
    def build(loader_type: Any) -> Any:
        calls = tmp_path / f"{loader_type.__module__}"

        def count(worker: int) -> None:
            with calls.open("a") as file:
                file.write(f"{worker} ")
            if changes:
                get_worker_info().dataset.indices = range(9, 18)

        options = {"persistent_workers": persistent}
        loader = loader_of(pictures, count, sampler=range(9), **options)(loader_type)
        loader.calls = calls
        return loader

    def drive(loader: Any) -> Iterator[Any]:
        for _ in range(2):
            yield from one_epoch(loader)
            yield sorted(loader.calls.read_text().split())

    assert_same_behaviour(build, drive)


# --- functions that do more -----------------------------------------------------------------------


def raise_in_one(worker: int) -> None:
    if worker == 1:
        raise LookupError("worker 1 finds nothing")


def raise_in_all(worker: int) -> None:
    torch.rand(5)
    raise ZeroDivisionError


def drop_samples(worker: int) -> None:
    get_worker_info().dataset.dataset.samples.reverse()


def other_indices(worker: int) -> None:
    get_worker_info().dataset.indices = list(range(20))[::-1]


def other_transform(worker: int) -> None:
    get_worker_info().dataset.dataset.transform.transforms[1].p = 1.0


def new_attribute(worker: int) -> None:
    get_worker_info().dataset.worker = worker


def tolerate_truncation(worker: int) -> None:
    ImageFile.LOAD_TRUNCATED_IMAGES = True


def replace_open(worker: int) -> None:
    from PIL import Image

    original = Image.open
    Image.open = lambda *args, **options: original(*args, **options).rotate(90)


DOING_MORE = [
    raise_in_one,
    raise_in_all,
    drop_samples,
    other_indices,
    other_transform,
    new_attribute,
    tolerate_truncation,
    replace_open,
]


@pytest.mark.parametrize("function", DOING_MORE)
def test_functions_that_do_more_keep_torchs_workers(
    mixed_pictures: Path, function: Callable[[int], None]
) -> None:
    build = loader_of(mixed_pictures, function, shuffle=True)
    assert path_taken(build) == "torch"
    assert_same_behaviour(build)


def test_what_keeps_the_workers_is_explained(pictures: Path) -> None:
    loader: Any = loader_of(pictures, raise_in_all)(DataLoader)
    assert "as long as worker_init_fn only seeds" in loader.explain().reason
    end(iter(loader))
    explanation = loader.explain()
    assert explanation.culprit is raise_in_all and "raised" in explanation.reason
    loader.worker_init_fn = seed_all
    assert loader.explain().native


def test_kept_workers_serve_a_persistent_loader_and_a_conversion(pictures: Path) -> None:
    build = loader_of(pictures, new_attribute, persistent_workers=True, shuffle=True)
    assert_same_behaviour(build, epochs(3))

    loader = DataLoader(
        ImageFolder(pictures, train()),
        worker_init_fn=new_attribute,
        num_workers=1,
        dtype=torch.half,
    )
    iterator = iter(loader)
    assert next(iterator)[0].dtype == torch.half
    end(iterator)


def die(worker: int) -> None:
    os._exit(5)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_worker_that_dies_is_reported_as_by_torch(pictures: Path) -> None:
    loader = loader_of(pictures, die, num_workers=1)(DataLoader)
    with pytest.raises(RuntimeError, match=r"DataLoader worker .* exited unexpectedly"):
        next(iter(loader))


def sleep_long(worker: int) -> None:
    import time

    time.sleep(30)


def test_the_timeout_counts_in_it(pictures: Path) -> None:
    def drive(loader: Any) -> Iterator[Any]:
        iterator = begin(loader)
        yield step(iterator)
        for worker in iterator._workers:
            worker.terminate()

    build = loader_of(pictures, sleep_long, num_workers=1, timeout=0.5)
    steps, _ = observe(build, drive, DataLoader)
    assert steps[0].event == Raised(RuntimeError, *["DataLoader timed out after 0.5 seconds"] * 2)


def test_a_sampler_that_raises_leaves_no_worker_waiting(pictures: Path) -> None:
    class Raises:
        def __iter__(self) -> Iterator[int]:
            yield 1
            raise KeyError("no more")

    def build(loader_type: Any) -> Any:
        return loader_of(pictures, seed_all, sampler=Raises(), batch_size=1)(loader_type)

    assert_same_behaviour(build, epochs(1, 3))


# --- other processes ------------------------------------------------------------------------------


def test_workers_that_are_spawned_run_it_too(pictures: Path) -> None:
    options = {"multiprocessing_context": "spawn", "num_workers": 1}
    assert_same_behaviour(loader_of(pictures, seed_all, **options), epochs(1, at_most=2))


def test_pillows_settings_reach_only_workers_that_are_forked(mixed_pictures: Path) -> None:
    def build(context: str) -> Any:
        folder = ImageFolder(mixed_pictures, train())
        return DataLoader(folder, num_workers=1, multiprocessing_context=context)

    assert build("spawn").explain().native
    with changed(ImageFile, LOAD_TRUNCATED_IMAGES=True):
        assert build("fork").explain().native
        assert not build("spawn").explain().native
