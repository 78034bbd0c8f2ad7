"""Arguments and attributes: torch's own, on both paths, and those of releases to come."""

import copy
import inspect
import pickle
import random
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler, TensorDataset
from torch.utils.data import DataLoader as TorchLoader
from torchvision.datasets import ImageFolder

from headrace import DataLoader
from support import Raised, assert_same, assert_same_behaviour, begin, changed, end, step, train

OF_TORCH = inspect.signature(TorchLoader.__init__).parameters
OURS = inspect.signature(DataLoader.__init__).parameters


# --- the class ------------------------------------------------------------------------------------


def test_it_is_a_generic_subclass_of_torchs() -> None:
    assert issubclass(DataLoader, TorchLoader)
    assert DataLoader.__name__ == TorchLoader.__name__
    loader = DataLoader[int]([1, 2])  # type: ignore[arg-type]
    assert type(loader) is DataLoader
    assert isinstance(loader, TorchLoader)


def test_torchs_arguments_have_their_places_and_defaults() -> None:
    found = list(OURS.values())[: len(OF_TORCH)]
    for ours, theirs in zip(found, OF_TORCH.values(), strict=True):
        assert (ours.name, ours.kind, ours.default) == (theirs.name, theirs.kind, theirs.default)
    for ours in list(OURS.values())[len(OF_TORCH) :]:
        assert ours.kind in (ours.KEYWORD_ONLY, ours.VAR_KEYWORD)


@pytest.mark.parametrize("native", [True, False])
def test_every_argument_has_an_attribute_as_torchs(pictures: Path, native: bool) -> None:
    dataset: Any = ImageFolder(pictures, train()) if native else [1, 2, 3]
    for options in (
        {},
        {"batch_size": 3, "shuffle": True, "drop_last": True, "generator": torch.Generator()},
        {"num_workers": 1, "prefetch_factor": 4, "persistent_workers": True, "timeout": 9},
        {"num_workers": 1, "multiprocessing_context": "spawn", "in_order": False},
        {"sampler": [1, 2], "collate_fn": list, "worker_init_fn": print},
        {"batch_sampler": [[1], [2]]},
        {"batch_size": None},
    ):
        ours, theirs = DataLoader(dataset, **options), TorchLoader(dataset, **options)
        for name in OF_TORCH.keys() - {"self", "shuffle"}:
            one, other = getattr(ours, name), getattr(theirs, name)
            assert type(one) is type(other), name
            if name not in ("sampler", "batch_sampler"):
                assert one == other, name
        public = {name for name in vars(theirs) if not name.startswith("_")}
        assert public <= vars(ours).keys()
    for name, parameter in OURS.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            assert hasattr(ours, name), name


@pytest.mark.parametrize("dataset", [[1, 2, 3], TensorDataset(torch.arange(5))])
@pytest.mark.parametrize(
    "arguments",
    [
        {"num_workers": -1},
        {"timeout": -0.5},
        {"prefetch_factor": 1},
        {"num_workers": 2, "prefetch_factor": -2},
        {"persistent_workers": True},
        {"batch_size": -3},
        {"batch_size": True},
        {"batch_size": "4"},
        {"drop_last": 1},
        {"shuffle": True, "sampler": [1]},
        {"batch_sampler": [[1]], "drop_last": True},
        {"batch_sampler": [[1]], "shuffle": True},
        {"batch_sampler": [[1]], "sampler": [1]},
        {"batch_size": None, "drop_last": True},
        {"multiprocessing_context": "fork"},
        {"num_workers": 1, "multiprocessing_context": "none such"},
        {"num_workers": 1, "multiprocessing_context": object},
        {"num_workers": "1"},
    ],
)
def test_bad_arguments_are_refused_as_by_torch(dataset: Any, arguments: dict[str, Any]) -> None:
    def outcome(loader_type: Any) -> Any:
        try:
            return type(loader_type(dataset, **arguments)).__name__
        except Exception as error:
            return Raised.of(error)

    assert outcome(DataLoader) == outcome(TorchLoader)


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


@pytest.mark.parametrize(
    "arguments", [{"shuffle": True}, {"sampler": [1]}, {"batch_sampler": [[1]]}, {"shuffle": 0}]
)
def test_arguments_that_no_iterable_dataset_takes(arguments: dict[str, Any]) -> None:
    def outcome(loader_type: Any) -> Any:
        try:
            return list(loader_type(Numbers(), **arguments))
        except Exception as error:
            return str(error)

    assert outcome(DataLoader) == outcome(TorchLoader)


def test_attributes_are_frozen_and_free_as_torchs(pictures: Path) -> None:
    for name in OF_TORCH.keys() - {"self"}:

        def set_it(loader_type: Any, name: str = name) -> Any:
            loader = loader_type(ImageFolder(pictures, train()), num_workers=1)
            try:
                setattr(loader, name, getattr(loader, name, None))
            except Exception as error:
                return Raised.of(error)
            return None

        assert set_it(DataLoader) == set_it(TorchLoader), name


def test_changed_attributes_count_from_the_next_iterator(pictures: Path) -> None:
    def drive(loader: Any) -> Iterator[Any]:
        for name, value in [("num_workers", 0), ("prefetch_factor", 3), ("timeout", 0), ("x", 1)]:
            iterator = begin(loader)
            yield step(iterator)
            setattr(loader, name, value)
            yield step(iterator)
            end(iterator)

    def build(loader_type: Any) -> Any:
        options = {"num_workers": 1, "shuffle": True, "timeout": 50}
        return loader_type(ImageFolder(pictures, train()), 3, **options)

    assert_same_behaviour(build, drive)


# --- arguments of a newer torch -------------------------------------------------------------------


@pytest.fixture
def newer_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's constructor as some release may have it."""
    original = TorchLoader.__init__

    def with_one_more(self: Any, *args: Any, in_shards: bool = False, **options: Any) -> None:
        original(self, *args, **options)
        self.in_shards = in_shards

    parameters = [
        *OF_TORCH.values(),
        inspect.Parameter("in_shards", inspect.Parameter.KEYWORD_ONLY, default=False),
    ]
    with_one_more.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    monkeypatch.setattr(TorchLoader, "__init__", with_one_more)


def test_an_argument_of_a_newer_torch_goes_to_torch(newer_torch: None, pictures: Path) -> None:
    folder = ImageFolder(pictures, train())
    loader: Any = DataLoader(folder, 4, in_shards=True)
    assert loader.in_shards is True
    explanation = loader.explain()
    assert not explanation.native and "in_shards=True" in str(explanation)
    assert len(list(loader)) == len(loader)
    assert DataLoader(folder, 4, in_shards=False).explain().native  # its default
    with pytest.raises(TypeError, match="no_such"):
        DataLoader(folder, no_such=1)


# --- copies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("iterated", [True, False])
def test_pickled_and_copied_loaders_go_their_own_way(
    pictures: Path, native: bool, iterated: bool
) -> None:
    def build(loader_type: Any) -> Any:
        dataset: Any = ImageFolder(pictures, train()) if native else list(range(9))
        return loader_type(dataset, 3, shuffle=True, num_workers=1)

    def drive(loader: Any) -> Iterator[Any]:
        if iterated:
            end(iter(loader))
        for copied in (
            pickle.loads(pickle.dumps(loader)),
            copy.copy(loader),
            copy.deepcopy(loader),
        ):
            iterator = begin(copied)
            yield step(iterator)
            end(iterator)
        iterator = begin(loader)
        try:
            pickle.dumps(iterator)
        except Exception as error:
            yield type(error)
        end(iterator)

    assert_same_behaviour(build, drive, "native" if native else "torch")


# --- random state ---------------------------------------------------------------------------------


class Drawn(list[int]):
    """Draws of all three generators, as seen by a sample."""

    def __getitem__(self, index: Any) -> Any:
        generator = np.random
        return index, random.random(), torch.rand(1).item(), generator.random()


@pytest.mark.parametrize("workers", [0, 2])
def test_all_generators_stand_where_torch_puts_them(workers: int) -> None:
    def build(loader_type: Any) -> Any:
        return loader_type(Drawn(range(8)), 2, num_workers=workers)

    assert_same_behaviour(build, path="torch")


def test_a_persistent_reset_draws_no_new_seed(pictures: Path) -> None:
    def epochs_of(loader_type: Any, persistent: bool) -> tuple[list[Any], list[Any]]:
        torch.manual_seed(6)
        folder = ImageFolder(pictures, train())
        options = {"num_workers": 1, "persistent_workers": persistent}
        loader = loader_type(folder, 8, **options)
        return list(loader), list(loader)

    first, second = epochs_of(DataLoader, True)
    assert_same((first, second), epochs_of(TorchLoader, True))
    assert not torch.equal(second[0][0], epochs_of(DataLoader, False)[1][0][0])


# --- collate and pin ------------------------------------------------------------------------------

Pair = namedtuple("Pair", "name value")


class Kept(dict[str, Any]):
    pass


SAMPLES: dict[str, list[Any]] = {
    "ints": [1, 2, 3],
    "floats": [1.5, 2.5, 3.0],
    "bools": [True, False, True],
    "strings": ["a", "bc", ""],
    "bytes": [b"a", b"b", b""],
    "tuples": [(1, "a"), (2, "b"), (3, "c")],
    "lists": [[1, 2.0], [3, 4.0], [5, 6.0]],
    "mappings": [{"x": 1, "y": "a"}] * 3,
    "own mappings": [Kept(x=1), Kept(x=2), Kept(x=3)],
    "namedtuples": [Pair("a", 1), Pair("b", 2), Pair("c", 3)],
    "arrays": [np.arange(3)] * 3,
    "scalars": [np.float32(1), np.float32(2), np.float32(3)],
    "tensors": [torch.ones(2)] * 3,
    "other shapes": [torch.ones(1), torch.ones(2), torch.ones(3)],
    "objects": [object] * 3,
    "none": [None] * 3,
}


@pytest.mark.parametrize("batch_size", [2, None])
@pytest.mark.parametrize("kind", SAMPLES)
def test_samples_are_collated_or_converted_as_by_torch(kind: str, batch_size: int | None) -> None:
    def build(loader_type: Any) -> Any:
        return loader_type(SAMPLES[kind], batch_size, pin_memory=True)

    def types(data: Any) -> Any:
        if isinstance(data, dict):
            return type(data), {key: types(value) for key, value in data.items()}
        if isinstance(data, (list, tuple)):
            return type(data), [types(value) for value in data]
        return type(data), getattr(data, "dtype", None)

    def drive(loader: Any) -> Iterator[Any]:
        iterator = begin(loader)
        for _ in range(4):
            event = step(iterator)
            yield str(event) if isinstance(event, Raised) else (types(event), str(event))

    assert_same_behaviour(build, drive, "torch")


@pytest.mark.parametrize("workers", [0, 1])
def test_pin_memory_without_an_accelerator_warns_as_torch(pictures: Path, workers: int) -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")

    def warnings_of(loader_type: Any) -> list[tuple[str, type]]:
        options = {"pin_memory": True, "pin_memory_device": "cuda", "num_workers": workers}
        loader = loader_type(ImageFolder(pictures, train()), 9, **options)
        with pytest.warns() as caught:
            iterator = iter(loader)
            images, _ = next(iterator)
        end(iterator)
        assert not images.is_pinned()
        return [(str(one.message), one.category) for one in caught]

    assert warnings_of(DataLoader) == warnings_of(TorchLoader)


# --- samplers -------------------------------------------------------------------------------------


class OwnBatchSampler(BatchSampler):
    def __iter__(self) -> Iterator[list[int]]:
        for batch in super().__iter__():
            yield batch[::-1]


SAMPLERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "own batch sampler": lambda data: {
        "batch_sampler": OwnBatchSampler(SequentialSampler(data), 3, False)
    },
    "batch sampler as sampler": lambda data: {
        "sampler": BatchSampler(SequentialSampler(data), 4, True),
        "batch_size": None,
    },
    "generator function": lambda data: {"batch_sampler": [[1, 2], (3,), range(4, 6)]},
    "string keys": lambda data: {"sampler": "0123"},
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samplers_of_any_kind_are_followed(pictures: Path, sampler: str, workers: int) -> None:
    def build(loader_type: Any) -> Any:
        folder = ImageFolder(pictures, train())
        return loader_type(folder, num_workers=workers, **SAMPLERS[sampler](folder))

    assert_same_behaviour(build)


# --- in torch's place -----------------------------------------------------------------------------


def test_it_can_stand_in_torchs_own_module() -> None:
    with changed(torch.utils.data, DataLoader=DataLoader):  # as test-suites replace it
        loader = torch.utils.data.DataLoader([1, 2], 2)
        assert type(loader) is DataLoader
        assert next(iter(loader)).tolist() == [1, 2]


class ForEver:
    """Repeats a batch sampler, as training scripts do to start their workers once only."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


def subclass_of(base: Any) -> Any:
    """A loader as they derive it: with arguments, an iterator and a length of its own."""

    class Repeating(base):  # type: ignore[misc]
        def __init__(self, *args: Any, repeats: int = 1, **options: Any) -> None:
            super().__init__(*args, **options)
            self._DataLoader__initialized = False  # so that torch lets it
            self.batch_sampler = ForEver(self.batch_sampler)
            self._DataLoader__initialized = True
            self.repeats = repeats
            self.endless = super().__iter__()

        def __len__(self) -> int:
            return self.repeats * len(self.batch_sampler.sampler)

        def __iter__(self) -> Iterator[Any]:
            return (next(self.endless) for _ in range(len(self)))

    return Repeating


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("native", [True, False])
def test_it_can_be_derived_from_as_torchs(pictures: Path, native: bool, workers: int) -> None:
    def build(loader_type: Any) -> Any:
        dataset: Any = ImageFolder(pictures, train()) if native else Drawn(range(8))
        return subclass_of(loader_type)(dataset, 3, shuffle=True, num_workers=workers, repeats=2)

    def drive(loader: Any) -> Iterator[Any]:
        for _ in range(2):
            yield len(loader)
            yield from loader
        end(loader.endless)

    assert_same_behaviour(build, drive, "native" if native else "torch")
