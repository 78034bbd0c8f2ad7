"""rng, on_error and resumable where a collate function or a worker_init_fn keeps torch's path."""

import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Subset, default_collate, get_worker_info
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from headrace import DataLoader
from support import assert_same, train

mixing = v2.RandomChoice([v2.CutMix(num_classes=3), v2.MixUp(num_classes=3)])


def mixed(batch: Any) -> Any:
    return mixing(*default_collate(batch))


def seed_all(worker: int) -> None:
    random.seed(worker)
    np.random.seed(worker)  # noqa: NPY002
    torch.manual_seed(worker)


def loader_of(root: Path, **options: Any) -> DataLoader[Any]:
    folder = ImageFolder(root, train())
    return DataLoader(folder, 4, **{"shuffle": True, "rng": "counter", "seed": 3, **options})


# --- rng="counter" --------------------------------------------------------------------------------


def test_counter_draws_of_a_mixing_depend_on_no_workers_and_no_cut(pictures: Path) -> None:
    """They go on in the stream of the batch's last sample."""

    def loader(num_workers: int) -> DataLoader[Any]:
        torch.manual_seed(7)
        return loader_of(pictures, collate_fn=mixed, num_workers=num_workers)

    explanation = loader(2).explain()
    assert explanation.culprit is mixed and "counter" in explanation.reason
    whole = list(loader(2))
    assert_same(list(loader(1)), whole)
    shares = {labels.float().amax(1).mean().item() for _, labels in whole}
    assert len(shares) == len(whole), "batches were mixed alike"

    saved = loader(2)
    iterator = iter(saved)
    assert_same([next(iterator), next(iterator)], whole[:2])
    resumed = loader(1)
    resumed.load_state_dict(saved.state_dict())
    assert_same(list(resumed), whole[2:])

    # Without workers shuffling draws its seed later, so that its order is another.
    options: dict[str, Any] = {"sampler": range(9), "shuffle": None, "collate_fn": mixed}
    in_main_process = list(loader_of(pictures, **options))
    assert_same(in_main_process, list(loader_of(pictures, num_workers=2, **options)))


def test_counter_samples_are_the_same_whatever_worker_init_fn_seeds(pictures: Path) -> None:
    def batches(**options: Any) -> tuple[str, list[Any]]:
        torch.manual_seed(7)
        loader = loader_of(pictures, num_workers=2, **options)
        return loader.explain().path, list(loader)

    (kept, seeded), (native, plain) = batches(worker_init_fn=seed_all), batches()
    assert (kept, native) == ("torch", "native")
    assert_same(seeded, plain)


def test_worker_init_fn_sees_the_users_own_dataset(pictures: Path) -> None:
    def check(worker: int) -> None:
        assert type(get_worker_info().dataset) is ImageFolder

    for options in ({}, {"rng": "torch", "seed": None, "on_error": "skip"}):
        loader = loader_of(pictures, num_workers=1, worker_init_fn=check, **options)
        assert loader.explain().path == "torch"
        assert len(list(loader)) == len(loader)


# --- on_error -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"collate_fn": mixed},
        {"collate_fn": mixed, "num_workers": 1},
        {"worker_init_fn": seed_all, "num_workers": 1},
    ],
)
def test_a_skipped_epoch_is_torchs_of_the_good_files(
    mixed_pictures: Path, options: dict[str, Any]
) -> None:
    """In batches of one, so that batches of bad files, which are left out, move no other."""
    whole = ImageFolder(mixed_pictures, train())
    kept = [n for n, (path, _) in enumerate(whole.samples) if Path(path).suffix == ".jpg"]
    good = [n for n in kept if loads(whole, n)]
    assert len(good) < len(kept) - 5
    loader = DataLoader(whole, 1, sampler=kept, on_error="skip", **options)
    assert loader.explain().path == "torch"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(7)
        found = list(loader)
        torch.manual_seed(7)
        expected = list(TorchLoader(Subset(whole, good), 1, **options))
    assert loader.error_count == len(kept) - len(good)
    assert_same(found, expected)


def loads(folder: ImageFolder, index: int) -> bool:
    try:
        folder.loader(folder.samples[index][0])
    except Exception:
        return False
    return True


# --- what no rule is about ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_that_a_key_cannot_hold_are_refused(pictures: Path, seed: int) -> None:
    with pytest.raises(ValueError, match=f"got {seed}"):
        loader_of(pictures, seed=seed)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("rules", [{"resumable": True}, {"on_error": "skip"}])
def test_an_empty_batch_of_a_batch_sampler_is_collated(
    pictures: Path, num_workers: int, rules: dict[str, Any]
) -> None:
    folder = ImageFolder(pictures, train())
    options: dict[str, Any] = {"batch_sampler": [[0, 1], [], [2]], "collate_fn": len}
    found = list(DataLoader(folder, num_workers=num_workers, **options, **rules))
    assert found == list(TorchLoader(folder, **options)) == [2, 0, 1]


def test_an_interrupted_batch_that_torch_makes_is_still_to_come(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ImageFolder(pictures, v2.Compose([v2.Resize((8, 8)), v2.ToImage()]))
    folder.samples[1] = (folder.samples[1][0], True)  # no label that the engine takes
    iterator = iter(DataLoader(folder, 2))
    fetch = iterator._fetch  # type: ignore[attr-defined]

    def interrupted(indices: Any) -> Any:
        monkeypatch.setattr(iterator, "_fetch", fetch)
        raise KeyboardInterrupt

    monkeypatch.setattr(iterator, "_fetch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert_same(list(iterator), list(TorchLoader(folder, 2)))
