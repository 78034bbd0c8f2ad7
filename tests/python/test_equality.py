"""headrace's DataLoader gives torch's batches, bit for bit, and behaves as torch's does."""

import copy
import itertools
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchvision.datasets import ImageFolder

import headrace
from support import (
    PIPELINES,
    Build,
    Raised,
    assert_same_behaviour,
    begin,
    end,
    epochs,
    evaluation,
    one_epoch,
    step,
    train,
    train_uint8,
    train_v2,
)


def loader_of(root: Path, pipeline: Callable[[], Any] = train, **options: Any) -> Build:
    def build(loader_type: Any) -> Any:
        return loader_type(ImageFolder(root, pipeline()), **{"batch_size": 4, **options})

    return build


# --- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_batches_without_workers_equal_torchs(
    pictures: Path, pipeline: Callable[[], Any], shuffle: bool
) -> None:
    assert_same_behaviour(loader_of(pictures, pipeline, shuffle=shuffle))


WORKERS = [
    {"num_workers": 1},
    {"num_workers": 1, "shuffle": True, "persistent_workers": True, "batch_size": 1},
    {"num_workers": 1, "shuffle": True, "prefetch_factor": 4, "drop_last": True},
    {"num_workers": 2, "prefetch_factor": 1, "timeout": 60},
    {"num_workers": 2, "shuffle": True, "drop_last": True},
    {"num_workers": 2, "shuffle": True, "persistent_workers": True},
    {"num_workers": 3, "prefetch_factor": 3, "drop_last": True, "persistent_workers": True},
    {"num_workers": 3, "shuffle": True, "batch_size": 50},
    {"num_workers": 5, "shuffle": True, "prefetch_factor": 1, "persistent_workers": True},
    {"num_workers": 5, "shuffle": True, "batch_size": 2, "pin_memory": True},
]


@pytest.mark.parametrize(
    ("pipeline", "options"),
    list(zip(itertools.cycle(PIPELINES), WORKERS + WORKERS[::-1])),
)
def test_batches_with_workers_equal_torchs(
    pictures: Path, pipeline: Callable[[], Any], options: dict[str, Any]
) -> None:
    assert_same_behaviour(loader_of(pictures, pipeline, **options))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("ours", [{"threads": 1}, {"threads": 2}, {"threads": 8}])
def test_the_number_of_threads_does_not_change_a_bit(
    mixed_pictures: Path, ours: dict[str, int], num_workers: int
) -> None:
    def build(loader_type: Any) -> Any:
        options = ours if loader_type is headrace.DataLoader else {}
        folder = ImageFolder(mixed_pictures, train())
        return loader_type(folder, 3, shuffle=True, num_workers=num_workers, **options)

    assert_same_behaviour(build)


@pytest.mark.parametrize("num_workers", [0, 3])
def test_a_tiny_read_budget_does_not_change_a_bit(mixed_pictures: Path, num_workers: int) -> None:
    def build(loader_type: Any) -> Any:
        options = {"read_budget_bytes": 1} if loader_type is headrace.DataLoader else {}
        folder = ImageFolder(mixed_pictures, train())
        return loader_type(folder, 3, shuffle=True, num_workers=num_workers, **options)

    assert_same_behaviour(build)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_made_in_inference_mode_are_inference_tensors(
    pictures: Path, num_workers: int
) -> None:
    def drive(loader: Any) -> Iterator[Any]:
        with torch.inference_mode():
            yield from one_epoch(loader)

    assert_same_behaviour(loader_of(pictures, evaluation, num_workers=num_workers), drive)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_may_be_changed_in_place(pictures: Path, num_workers: int) -> None:
    def drive(loader: Any) -> Iterator[Any]:
        for images, labels in loader:
            yield images.mul_(2), labels.add_(1)

    assert_same_behaviour(loader_of(pictures, train, num_workers=num_workers), drive)


def test_photos_give_the_same_batches(corpus: Path) -> None:
    if not (corpus / "photos").is_dir():
        pytest.skip("no photos in the corpus")

    def build(loader_type: Any) -> Any:
        folder = ImageFolder(corpus / "photos", train(224))
        chosen = Subset(folder, range(0, len(folder), len(folder) // 40))
        return loader_type(chosen, 8, shuffle=True, num_workers=2)

    assert_same_behaviour(build, epochs(1))


# --- samplers -----------------------------------------------------------------------------------


class DrawsAtEachSample(Sampler[int]):
    """Draws from torch's global generator whenever it is asked, and remembers the epoch."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.epoch = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        for _ in range(self.length):
            yield (int(torch.randint(self.length, (1,))) + self.epoch) % self.length


class DrawsAtTheStart(DrawsAtEachSample):
    """Draws all in __iter__, before base_seed."""

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return iter(((torch.randperm(self.length) + self.epoch) % self.length).tolist())


class Raises(DrawsAtEachSample):
    """A generator that raises ends there."""

    def __iter__(self) -> Iterator[int]:
        for index in range(self.length):
            if index == 9:
                raise KeyError("the sampler is broken")
            yield index


def seeded(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


SAMPLERS: dict[str, Callable[[range], dict[str, Any]]] = {
    "generator": lambda data: {"shuffle": True, "generator": seeded()},
    "sampler's own generator": lambda data: {"sampler": RandomSampler(data, generator=seeded())},
    "replacement": lambda data: {"sampler": RandomSampler(data, True, 30)},
    "more than there are": lambda data: {"sampler": RandomSampler(data, num_samples=60)},
    "weighted": lambda data: {"sampler": WeightedRandomSampler([1.0, 2.0] * 11, 30)},
    "subset": lambda data: {"sampler": SubsetRandomSampler(data[3:17])},
    "distributed": lambda data: {"sampler": DistributedSampler(data, 3, 1)},
    "distributed in order": lambda data: {"sampler": DistributedSampler(data, 2, 0, shuffle=False)},
    "draws": lambda data: {"sampler": DrawsAtEachSample(len(data))},
    "draws at the start": lambda data: {"sampler": DrawsAtTheStart(len(data))},
    "raises": lambda data: {"sampler": Raises(len(data))},
    "list": lambda data: {"sampler": [3, 1, 4, 1, 5, 9, 2, 6]},
}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_is_followed(pictures: Path, sampler: str, num_workers: int) -> None:
    def build(loader_type: Any) -> Any:
        folder = ImageFolder(pictures, train())
        options = SAMPLERS[sampler](range(len(folder)))
        return loader_type(folder, 4, num_workers=num_workers, **options)

    assert_same_behaviour(build)


def test_persistent_workers_follow_set_epoch(pictures: Path) -> None:
    def build(loader_type: Any) -> Any:
        folder = ImageFolder(pictures, train())
        sampler = DistributedSampler(folder, 2, 1)
        return loader_type(folder, 4, sampler=sampler, num_workers=2, persistent_workers=True)

    assert_same_behaviour(build, epochs(3))


class RaisesAndGoesOn:
    """A batch sampler whose iterator can go on after an exception."""

    def __iter__(self) -> "RaisesAndGoesOn":
        self.batch = 0
        return self

    def __next__(self) -> list[int]:
        self.batch += 1
        if self.batch in (1, 3, 6):
            raise ValueError(f"no batch {self.batch}")
        if self.batch > 9:
            raise StopIteration
        return [self.batch, self.batch + 1]


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_exceptions_of_a_batch_sampler_come_where_torchs_do(
    pictures: Path, num_workers: int
) -> None:
    def build(loader_type: Any) -> Any:
        batches = RaisesAndGoesOn()
        folder = ImageFolder(pictures, train())
        return loader_type(folder, batch_sampler=batches, num_workers=num_workers)

    assert_same_behaviour(build, epochs(2, at_most=12))


# --- indices ------------------------------------------------------------------------------------

UNEVEN = [[0, 1, 2], [5], [], [3, -1], [7, 7, 7, 7], [99, 1], [1, 2]]
BATCHES: list[Any] = [
    *UNEVEN,
    *[tuple(batch) for batch in UNEVEN],
    *[{1, 2, 38, 37}, {7}, set()],
    *[{1: 2, 38: 4, 37: 5}],
    *[range(3), range(39, 33, -1), range(0)],
    *[torch.tensor(batch, dtype=torch.int64) for batch in UNEVEN],
    *[np.array(batch, dtype=np.int64) for batch in UNEVEN],
    *[[torch.tensor(index) for index in batch] for batch in UNEVEN],
    *[[np.int32(index) for index in batch] for batch in UNEVEN],
    *[[True, False], [1.0], ["1"], [None], [slice(0, 2)], [[0, 1]]],
    *[1, None, "12", [2]],
]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("subset", [False, True])
def test_whatever_a_batch_sampler_yields_means_what_it_means_to_torch(
    mixed_pictures: Path, subset: bool, num_workers: int
) -> None:
    def build(loader_type: Any) -> Any:
        folder = ImageFolder(mixed_pictures, train_uint8())
        dataset = Subset(folder, range(len(folder))[::-1]) if subset else folder
        return loader_type(dataset, batch_sampler=BATCHES, num_workers=num_workers)

    assert_same_behaviour(build, epochs(1))


class OneShot:
    """Yields iterators, which can be read only once, or one list that is filled again and again."""

    def __init__(self, reuse: bool) -> None:
        self.reuse = reuse

    def __iter__(self) -> Iterator[Any]:
        batch: list[int] = []
        for first in range(5):
            batch[:] = [first, first + 1, first + 30]
            yield batch if self.reuse else iter(list(batch))


@pytest.mark.parametrize("reuse", [False, True])
def test_batches_of_indices_may_be_short_lived(mixed_pictures: Path, reuse: bool) -> None:
    def build(loader_type: Any) -> Any:
        return loader_type(ImageFolder(mixed_pictures, train()), batch_sampler=OneShot(reuse))

    assert_same_behaviour(build)


SUBSETS: dict[str, Callable[[Any], Any]] = {
    "nested": lambda folder: Subset(Subset(folder, range(1, 20)), [4, 0, -1, 7, 7, 3]),
    "tensor": lambda folder: Subset(folder, torch.arange(3, 12)),
    "array": lambda folder: Subset(folder, np.arange(12)[::-1]),
    "empty": lambda folder: Subset(folder, []),
    "with impossible indices": lambda folder: Subset(folder, [0, 1, 99, 2, 3, None, "x", 4, -40]),
}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("subset", SUBSETS)
def test_subsets_are_looked_through(pictures: Path, subset: str, num_workers: int) -> None:
    def build(loader_type: Any) -> Any:
        dataset = SUBSETS[subset](ImageFolder(pictures, train()))
        return loader_type(dataset, batch_size=2, num_workers=num_workers)

    assert_same_behaviour(build)


# --- iterators ----------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [[1, 100], [0, 3, 100], [2, 2, 2, 100], [100, 1, 100]])
@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        {"num_workers": 2, "prefetch_factor": 1},
        {"num_workers": 1, "persistent_workers": True},
        {"num_workers": 3, "persistent_workers": True},
    ],
)
def test_epochs_after_a_break_equal_torchs(
    mixed_pictures: Path, options: dict[str, Any], steps: list[int]
) -> None:
    def drive(loader: Any) -> Iterator[Any]:
        for at_most in steps:
            yield from one_epoch(loader, at_most)

    build = loader_of(mixed_pictures, train, batch_size=3, shuffle=True, **options)
    assert_same_behaviour(build, drive)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_two_iterators_of_one_loader_do_not_disturb_each_other(
    mixed_pictures: Path, num_workers: int
) -> None:
    def drive(loader: Any) -> Iterator[Any]:
        one, other = iter(loader), iter(loader)
        for number in range(14):
            yield step(one)
            if number % 3:
                yield step(other)
            if number == 4:
                end(one)
                one = iter(loader)
        end(one)
        end(other)

    assert_same_behaviour(loader_of(mixed_pictures, shuffle=True, num_workers=num_workers), drive)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_loops_over_one_loader_may_be_nested(pictures: Path, num_workers: int) -> None:
    def drive(loader: Any) -> Iterator[Any]:
        for _, outer in zip(range(2), loader):  # noqa: B905  meant to stop early
            yield outer
            for _, inner in zip(range(2), loader):  # noqa: B905
                yield inner

    assert_same_behaviour(loader_of(pictures, shuffle=True, num_workers=num_workers), drive)


def test_a_persistent_iterator_is_one_object_that_starts_anew(pictures: Path) -> None:
    def drive(loader: Any) -> Iterator[Any]:
        one = begin(loader)
        yield step(one)
        other = begin(loader)
        yield one is other
        yield step(one), step(other)

    options = {"num_workers": 2, "persistent_workers": True, "shuffle": True}
    assert_same_behaviour(loader_of(pictures, **options), drive)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_lengths_and_iterators_are_as_torchs(pictures: Path, num_workers: int) -> None:
    def drive(loader: Any) -> Iterator[Any]:
        iterator = iter(loader)
        yield len(loader), len(iterator), iter(iterator) is iterator
        try:
            pickle.dumps(iterator)
        except Exception as error:
            yield type(error)
        end(iterator)

    for drop_last in (False, True):
        options = {"num_workers": num_workers, "drop_last": drop_last}
        assert_same_behaviour(loader_of(pictures, **options), drive)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_can_be_pickled_and_copied(pictures: Path, num_workers: int) -> None:
    def drive(loader: Any) -> Iterator[Any]:
        yield from one_epoch(pickle.loads(pickle.dumps(loader)), 2)
        yield from one_epoch(loader, 2)
        yield from one_epoch(pickle.loads(pickle.dumps(loader)), 2)
        yield from one_epoch(copy.copy(loader), 2)
        yield from one_epoch(copy.deepcopy(loader), 2)

    assert_same_behaviour(loader_of(pictures, shuffle=True, num_workers=num_workers), drive)


ARGUMENTS = [
    {"num_workers": -1},
    {"timeout": -1},
    {"prefetch_factor": 2},
    {"num_workers": 1, "prefetch_factor": -1},
    {"persistent_workers": True},
    {"batch_size": 0},
    {"batch_size": 2.5},
    {"shuffle": True, "sampler": [1]},
    {"batch_sampler": [[1]], "batch_size": 2},
    {"batch_size": None, "drop_last": True},
    {"multiprocessing_context": "fork"},
    {"num_workers": 1, "multiprocessing_context": "no such"},
    {"no_such_argument": 1},
]


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_bad_arguments_raise_what_torch_raises(pictures: Path, arguments: dict[str, Any]) -> None:
    def raised(loader_type: Any) -> Raised:
        with pytest.raises((ValueError, TypeError)) as caught:
            loader_type(ImageFolder(pictures, train()), **arguments)
        return Raised.of(caught.value)

    assert raised(headrace.DataLoader) == raised(torch.utils.data.DataLoader)


@pytest.mark.parametrize(
    "attribute",
    ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"],
)
def test_attributes_are_as_frozen_as_torchs(pictures: Path, attribute: str) -> None:
    loader = headrace.DataLoader(ImageFolder(pictures, train_v2()))
    with pytest.raises(ValueError, match="should not be set after DataLoader is initialized"):
        setattr(loader, attribute, getattr(loader, attribute))


@pytest.mark.parametrize("ours", [{"threads": 0}, {"read_budget_bytes": 0}])
def test_our_own_arguments_are_checked(pictures: Path, ours: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        headrace.DataLoader(ImageFolder(pictures, train()), **ours)
