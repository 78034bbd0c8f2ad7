"""torch's own path under headrace's class: iterable datasets, workers, and when they end."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    Dataset,
    IterableDataset,
    RandomSampler,
    get_worker_info,
)

from headrace import DataLoader
from support import Raised, assert_same_behaviour, begin, end, epochs, step


class Shared(IterableDataset[Any]):
    """Numbers, shared out over the workers, some of which have less to give."""

    def __init__(self, length: int = 11, fails_at: int = -1) -> None:
        self.length, self.fails_at = length, fails_at

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for number in range(first, self.length, step):
            if number == self.fails_at:
                raise LookupError(number)
            yield number, torch.rand(1).item(), info.seed % 1000 if info else None


class Sized(Shared):
    def __len__(self) -> int:
        return self.length - 2  # it has more to give than it says


ITERABLE: dict[str, Callable[[], Any]] = {
    "shared out": Shared,
    "with a length": Sized,
    "with a failure": lambda: Shared(fails_at=4),
    "empty": lambda: Shared(0),
    "chained": lambda: ChainDataset([Shared(3), Shared(4)]),
}


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 3},
        {"batch_size": None},
        {"batch_size": 2, "num_workers": 2, "drop_last": True},
        {"batch_size": None, "num_workers": 3},
        {"batch_size": 2, "num_workers": 2, "persistent_workers": True, "prefetch_factor": 1},
    ],
)
@pytest.mark.parametrize("dataset", ITERABLE)
def test_iterable_datasets_are_torchs(dataset: str, options: dict[str, Any]) -> None:
    def build(loader_type: Any) -> Any:
        return loader_type(ITERABLE[dataset](), **options)

    assert_same_behaviour(build, epochs(2), "torch")


class Squares(Dataset[int]):
    """Without a length: the sampler alone knows it."""

    def __getitem__(self, key: Any) -> Any:
        if key == 5:
            raise LookupError(key)
        return key**2, torch.rand(1).item()


class Length:
    def __len__(self) -> int:
        return 7


SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "list": lambda: {"sampler": [3, 1, 5, 2], "batch_size": 2},
    "random": lambda: {"sampler": RandomSampler(Length(), replacement=True, num_samples=9)},
    "generator": lambda: {
        "sampler": RandomSampler(Length(), generator=torch.Generator().manual_seed(3))
    },
    "batches": lambda: {"batch_sampler": BatchSampler([6, 5, 4, 3], 3, drop_last=False)},
    "none": lambda: {},
}


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}]
)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samplers_and_datasets_without_a_length(sampler: str, options: dict[str, Any]) -> None:
    def build(loader_type: Any) -> Any:
        return loader_type(Squares(), **SAMPLERS[sampler](), **options)

    assert_same_behaviour(build, epochs(2), "torch")


class Slow(Dataset[int]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, key: Any) -> int:
        time.sleep(30 if key == 0 else 0)
        return int(key)


def test_the_timeout_of_torchs_workers() -> None:
    def build(loader_type: Any) -> Any:
        return loader_type(Slow(), num_workers=1, timeout=0.3)

    def drive(loader: Any) -> Iterator[Any]:
        iterator = begin(loader)
        yield step(iterator)
        for worker in iterator._workers:
            worker.terminate()
        end(iterator)

    assert_same_behaviour(build, drive, "torch")


def test_batches_in_any_order_come_once_each_and_errors_too() -> None:
    loader: Any = DataLoader(Squares(), 1, sampler=range(20), num_workers=2, in_order=False)  # type: ignore[arg-type]
    iterator, found, raised = iter(loader), [], 0
    while (event := step(iterator)) != "the end":
        if isinstance(event, Raised):
            raised += 1
        else:
            found.append(event[0].item())
    assert raised == 1
    assert sorted(found) == [n**2 for n in range(20) if n != 5]


LEFT: dict[str, Callable[[Any], Any]] = {
    "unstarted": lambda iterator: None,
    "in the middle": next,
    "at the end": list,
}


@pytest.mark.parametrize("options", [{}, {"on_error": "skip"}, {"persistent_workers": True}])
@pytest.mark.parametrize("left", LEFT)
def test_workers_end_with_their_iterator(left: str, options: dict[str, Any]) -> None:
    """Dropped at any stage: at once, without the garbage collector."""
    loader: Any = DataLoader(range(9), 2, num_workers=2, **options)  # type: ignore[arg-type]
    iterator = iter(loader)
    workers = list(iterator._workers)
    assert len(workers) == 2
    LEFT[left](iterator)
    del iterator, loader
    for worker in workers:
        worker.join(20)
        assert worker.exitcode == 0
