"""state_dict() and load_state_dict(): at every cut point the rest is the uninterrupted run's."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler, Sampler
from torchvision.datasets import ImageFolder

import headrace
from support import assert_same, bad_files, good_files, train, write_folder


class TorchFolder(ImageFolder):
    """Takes torch's path, for being a subclass."""


FOLDERS = {"native": ImageFolder, "torch": TorchFolder}
OPTIONS: dict[str, dict[str, Any]] = {
    "no workers": {"num_workers": 0},
    "workers": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 1},
    "counter": {"num_workers": 2, "rng": "counter"},
    "persistent counter": {"num_workers": 1, "rng": "counter", "persistent_workers": True},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("good"), good_files())


def make(folder: Path, path: str = "native", **options: Any) -> headrace.DataLoader[Any]:
    dataset = FOLDERS[path](folder, train())
    options = {"batch_size": 5, "shuffle": True, "resumable": path == "torch", **options}
    return headrace.DataLoader(dataset, **options)


def run_on(loader: headrace.DataLoader[Any], cut: int) -> tuple[Any, Any]:
    """The state after `cut` batches, as JSON gives it back, and what comes after: the rest of the
    epoch and the next one."""
    iterator = iter(loader)
    for _ in range(cut):
        next(iterator)
    if cut == len(loader):
        assert next(iterator, None) is None
    state = json.loads(json.dumps(loader.state_dict()))
    return state, [*iterator, *loader]


def go_on(loader: headrace.DataLoader[Any], state: Any) -> Any:
    """What comes after `state`, in a process whose generators stand elsewhere."""
    torch.manual_seed(99)
    loader.load_state_dict(state)
    return [*loader, *([] if state["finished"] else loader)]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("path", FOLDERS)
def test_every_cut_point(folder: Path, path: str, options: dict[str, Any]) -> None:
    forked = path == "torch" and options["num_workers"]
    for start in (0, 1):
        for cut in (1, 5) if forked else range(6):
            torch.manual_seed(5)
            loader = make(folder, path, **options)
            for _ in range(start):
                list(loader)
            state, rest = run_on(loader, cut)
            assert_same(go_on(make(folder, path, **options), state), rest, f"{start}, {cut}")


def test_generators_of_the_loader(folder: Path) -> None:
    def with_generator() -> headrace.DataLoader[Any]:
        return make(folder, generator=torch.Generator().manual_seed(9), num_workers=2)

    state, rest = run_on(with_generator(), 2)
    assert_same(go_on(with_generator(), state), rest)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("mixed"), good_files() | bad_files())


def sampler_of(kind: str, dataset: Any) -> dict[str, Any]:
    match kind:
        case "DistributedSampler":
            return {"shuffle": False, "sampler": DistributedSampler(dataset, 2, 1, seed=4)}
        case "ShardedSampler":
            return {"shuffle": False, "sampler": headrace.ShardedSampler(dataset, 2, 1, seed=4)}
    return {"shuffle": True}


@pytest.mark.filterwarnings("ignore:headrace. samples that cannot be loaded")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", ["shuffled", "DistributedSampler", "ShardedSampler"])
@pytest.mark.parametrize("on_error", ["skip", "replace"])
@pytest.mark.parametrize("path", FOLDERS)
def test_every_cut_point_with_bad_samples(
    mixed: Path, path: str, on_error: str, kind: str, options: dict[str, Any]
) -> None:
    def make_again() -> headrace.DataLoader[Any]:
        dataset = FOLDERS[path](mixed, train())
        chosen = {"batch_size": 5, "on_error": on_error, **options, **sampler_of(kind, dataset)}
        return headrace.DataLoader(dataset, **chosen)

    forked = path == "torch" and options["num_workers"]
    for cut in (3,) if forked else range(len(make_again()) + 1):
        torch.manual_seed(5)
        loader = make_again()
        state, rest = run_on(loader, cut)
        resumed = make_again()
        assert_same(go_on(resumed, state), rest, f"after {cut}")
        assert resumed.error_count == loader.error_count


def test_counter_mode_at_another_number_of_workers(folder: Path) -> None:
    state, rest = run_on(make(folder, num_workers=2, rng="counter"), 2)
    for num_workers in (0, 3):
        assert_same(go_on(make(folder, num_workers=num_workers, rng="counter"), state), rest)


def test_nothing_before_the_cut_is_read(folder: Path) -> None:
    state, _ = run_on(make(folder, num_workers=1, prefetch_factor=1), 3)
    resumed = make(folder, num_workers=1, prefetch_factor=1)
    resumed.load_state_dict(state)
    list(resumed)
    assert resumed.stats()["stages"]["read"]["items"] <= len(resumed.dataset) - 3 * 5  # type: ignore[arg-type]


def test_the_state_after_break_is_that_of_the_break(folder: Path) -> None:
    loader = make(folder, num_workers=2)
    for number, _ in enumerate(loader):
        if number == 1:
            break
    assert loader.state_dict()["point"]["batches"] == 2


def test_a_loaded_state_is_the_state(folder: Path) -> None:
    state, _ = run_on(make(folder, num_workers=2), 2)
    resumed = make(folder, num_workers=2)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state


def test_distributed_sampler_as_it_is(folder: Path) -> None:
    def of_rank() -> headrace.DataLoader[Any]:
        dataset = ImageFolder(folder, train())
        sampler = DistributedSampler(dataset, 2, 1, seed=4)
        return headrace.DataLoader(dataset, 3, sampler=sampler, num_workers=2)

    torch.manual_seed(5)
    loader = of_rank()
    loader.set_epoch(3)
    state, rest = run_on(loader, 2)
    assert_same(go_on(of_rank(), state), rest)


class Counting(Sampler[int]):
    """Keeps its place itself, and would give something else if it were taken forward."""

    def __init__(self) -> None:
        self.place = 0

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Any:
        while self.place < 20:
            self.place += 1
            yield self.place - 1
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


class Placed(Counting):
    """Stays where it ended, as torchdata's samplers do; the next iteration begins anew."""

    begin: int | None = None

    def __iter__(self) -> Any:
        self.place, self.begin = self.begin or 0, None
        while self.place < 20:
            self.place += 1
            yield self.place - 1

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begin = self.place = state["place"]


class PlacedAtOnce(Placed):
    """The same, but iter() itself moves it, and not the first key that is asked for."""

    def __iter__(self) -> Any:
        self.place, self.begin = self.begin or 0, None
        return self._rest()

    def _rest(self) -> Any:
        while self.place < 20:
            self.place += 1
            yield self.place - 1


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sampler_that_keeps_its_place(folder: Path, num_workers: int) -> None:
    def with_sampler() -> headrace.DataLoader[Any]:
        dataset = ImageFolder(folder, train())
        return headrace.DataLoader(dataset, 3, sampler=Counting(), num_workers=num_workers)

    torch.manual_seed(5)
    state, rest = run_on(with_sampler(), 2)
    assert state["point"]["sampler"] == {"place": 6}
    assert_same(go_on(with_sampler(), state), rest)


@pytest.mark.parametrize("batch_size", [8, 10])
@pytest.mark.parametrize("kind", [Counting, Placed, PlacedAtOnce])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_such_a_sampler_at_every_cut_point(
    folder: Path, options: dict[str, Any], kind: Any, batch_size: int
) -> None:
    """After a last batch that is not full the place of some is that of the beginning."""

    def with_sampler() -> headrace.DataLoader[Any]:
        return make(folder, shuffle=False, sampler=kind(), **{**options, "batch_size": batch_size})

    for cut in range(-(-20 // batch_size) + 2):
        torch.manual_seed(5)
        loader = with_sampler()
        iterator = iter(loader)
        for _ in range(cut):
            next(iterator, None)
        state = json.loads(json.dumps(loader.state_dict()))
        rest = [*iterator, *loader]
        resumed = with_sampler()
        resumed.load_state_dict(state)
        iter(resumed)
        again = json.loads(json.dumps(resumed.state_dict()))
        for each in (state, again):
            resumed = with_sampler()
            resumed.load_state_dict(each)
            epochs = 1 if state["finished"] else 2
            found = [batch for _ in range(epochs) for batch in resumed]
            assert_same(found, rest, f"after {cut}")


class FromElsewhere(Sampler[int]):
    """Gives another order each time, by nothing that is saved."""

    turn = 0

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Any:
        type(self).turn += 1
        return iter([(place + self.turn) % 20 for place in range(20)])


def refusals(folder: Path) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    def plain(**options: Any) -> Callable[[], Any]:
        return lambda: make(folder, **{"num_workers": 2, **options})

    def odd() -> Any:
        return make(folder, shuffle=False, sampler=FromElsewhere(), num_workers=2)

    not_resumable = plain(path="torch", resumable=False)
    return {
        "num_workers was 2": (plain(), plain(num_workers=1)),
        "batch_size was 5": (plain(), plain(batch_size=4)),
        "rng was 'torch'": (plain(), plain(rng="counter")),
        "seed was 1": (plain(rng="counter", seed=1), plain(rng="counter", seed=2)),
        "resumable=True": (not_resumable, not_resumable),
        "are others than": (odd, odd),
    }


@pytest.mark.parametrize("message", refusals(Path()))
def test_what_would_go_on_wrongly_is_refused(folder: Path, message: str) -> None:
    saved, loaded = refusals(folder)[message]
    state, _ = run_on(saved(), 2)
    loader = loaded()
    with pytest.raises(headrace.Error, match=message):
        go_on(loader, state)


def test_batches_in_any_order_are_saved_between_epochs_only(folder: Path) -> None:
    """On the native path they keep the sampler's order, and any cut point is exact."""
    torch.manual_seed(5)
    state, rest = run_on(make(folder, in_order=False, num_workers=2), 2)
    assert_same(go_on(make(folder, in_order=False, num_workers=2), state), rest)

    for persistent in (False, True):
        options = {"in_order": False, "num_workers": 2, "persistent_workers": persistent}
        loader = make(folder, "torch", **options)
        for _ in loader:
            with pytest.raises(headrace.Error, match="in_order=True"):
                loader.state_dict()
        resumed, state = make(folder, "torch", **options), loader.state_dict()
        if persistent:  # where their workers stand cannot be told either
            with pytest.raises(headrace.Error, match="in_order=True"):
                resumed.load_state_dict(state)
        else:
            resumed.load_state_dict(state)
            assert sum(len(labels) for _, labels in resumed) == len(loader.dataset)  # type: ignore[arg-type]


def test_another_epoch_in_the_middle_of_one_is_refused(folder: Path) -> None:
    loader = make(folder)
    loader.set_epoch(3)
    state, _ = run_on(loader, 2)
    resumed = make(folder)
    resumed.load_state_dict(state)
    resumed.set_epoch(3)
    with pytest.raises(headrace.Error, match="epoch 3"):
        resumed.set_epoch(4)


def test_no_state_of_ours_is_refused(folder: Path) -> None:
    with pytest.raises(headrace.Error, match="no state"):
        make(folder).load_state_dict({"_index_sampler_state": None})
