"""ShardedSampler: torch's DistributedSampler, and an exact union at another number of ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler
from torchvision.datasets import ImageFolder

import headrace
from support import assert_same, good_files, train, write_folder


@pytest.mark.parametrize("size", [1, 7, 24])
@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("shuffle", [False, True])
def test_it_gives_what_torchs_gives(size: int, ranks: int, shuffle: bool) -> None:
    for remainder, drop_last in (("wrap", False), ("drop", True)):
        for rank in range(ranks):
            if drop_last and size < ranks:
                continue
            reference = DistributedSampler(range(size), ranks, rank, shuffle, 3, drop_last)  # type: ignore[arg-type]
            sampler = headrace.ShardedSampler(range(size), ranks, rank, shuffle, 3, remainder)
            for epoch in (0, 4):
                reference.set_epoch(epoch)
                sampler.set_epoch(epoch)
                assert len(sampler) == len(reference)
                assert list(sampler) == list(reference)


def test_padding_is_masked() -> None:
    counted: list[int] = []
    for rank in range(4):
        sampler = headrace.ShardedSampler(range(10), 4, rank, remainder="pad")
        mask = sampler.mask()
        counted += [index for index, counts in zip(sampler, mask, strict=True) if counts]
    assert sorted(counted) == list(range(10))


def test_torchruns_environment_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    sampler = headrace.ShardedSampler(range(8), shuffle=False)
    assert list(sampler) == [2, 6]


def test_an_epoch_that_was_left_begins_anew() -> None:
    sampler = headrace.ShardedSampler(range(8))
    whole = list(sampler)
    next(iter(sampler))
    assert list(sampler) == whole


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("good"), good_files())


def of_rank(folder: Path, ranks: int, rank: int, num_workers: int) -> headrace.DataLoader[Any]:
    dataset = ImageFolder(folder, train())
    sampler = headrace.ShardedSampler(dataset, ranks, rank, seed=1, remainder="drop")
    return headrace.DataLoader(
        dataset, 2, sampler=sampler, num_workers=num_workers, rng="counter", seed=8
    )


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_rest_of_an_epoch_on_another_number_of_ranks(folder: Path, ranks: int) -> None:
    """Every sample once, and the same pixels wherever it is loaded."""
    reference = of_rank(folder, 1, 0, 0)
    order = list(reference.sampler)
    whole = torch.cat([images for images, _ in reference])
    pixels = {index: whole[place] for place, index in enumerate(order)}
    found, states = [], []
    for rank in range(3):
        loader = of_rank(folder, 3, rank, 2)
        iterator = iter(loader)
        found += [image for _ in range(2) for image in next(iterator)[0]]
        states.append(loader.state_dict())
    assert [state["point"]["sampler"]["done"] for state in states] == [12, 12, 12]
    for rank in range(ranks):
        loader = of_rank(folder, ranks, rank, rank % 2)
        loader.load_state_dict(states[rank % 3])
        found += [image for images, _ in loader for image in images]
    expected = [pixels[index] for index in order]
    lacking = (len(order) - 12) % ranks  # remainder="drop"
    key = [image.numpy().tobytes() for image in expected]
    assert sorted(image.numpy().tobytes() for image in found) == sorted(key[: len(key) - lacking])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_mask_of_a_rest_stays_until_its_last_batch(folder: Path, num_workers: int) -> None:
    """Also where prefetching has long come to the end of the order."""
    first = of_rank(folder, 3, 0, 0)
    iterator = iter(first)
    next(iterator), next(iterator)
    dataset = ImageFolder(folder, train())
    sampler = headrace.ShardedSampler(dataset, 4, 3, seed=1, remainder="pad")
    loader = headrace.DataLoader(
        dataset, 2, sampler=sampler, num_workers=num_workers, rng="counter", seed=8
    )
    loader.load_state_dict(first.state_dict())
    batches = 0
    for batches, _ in enumerate(loader, 1):  # noqa: B007
        assert sampler.mask().tolist() == [True] * 2 + [False]  # 11 samples are left
    assert batches == 2
    sampler.set_epoch(1)
    assert sampler.mask().tolist() == [True] * 5 + [False]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("batch_size", [2, 3])
def test_nothing_is_left_after_the_last_batch(
    folder: Path, num_workers: int, batch_size: int
) -> None:
    """Nor is the epoch begun again, whether the last batch is full or not."""

    def of_ranks(ranks: int) -> headrace.DataLoader[Any]:
        dataset = ImageFolder(folder, train())
        sampler = headrace.ShardedSampler(dataset, ranks, 0)
        return headrace.DataLoader(
            dataset, batch_size, sampler=sampler, num_workers=num_workers, rng="counter", seed=8
        )

    saved = of_ranks(8)  # which take 24 samples together, of 23
    iterator = iter(saved)
    for _ in range(len(saved)):
        next(iterator)
    in_mid_epoch = saved.state_dict()
    assert next(iterator, None) is None
    over = saved.state_dict()
    iterator = iter(saved)
    begun = saved.state_dict()
    next(iterator)
    iterator = iter(saved)  # the one before is left
    begun_again = saved.state_dict()
    for ranks in (1, 2, 8):
        whole = -(-23 // ranks)
        loader = of_ranks(ranks)
        for state, expected in (
            (in_mid_epoch, [0, whole]),
            (over, [whole]),
            (begun, [whole, whole]),
            (begun_again, [whole]),
        ):
            loader.load_state_dict(state)
            assert [sum(len(labels) for _, labels in loader) for _ in expected] == expected


def test_fingerprints_of_both_loaders(folder: Path) -> None:
    def of(kind: Any, seed: int = 5, num_workers: int = 0) -> str:
        torch.manual_seed(seed)
        dataset = ImageFolder(folder, train())
        return headrace.fingerprint(kind(dataset, 4, shuffle=True, num_workers=num_workers))

    mine = of(headrace.DataLoader)
    torch.manual_seed(5)
    loader = headrace.DataLoader(ImageFolder(folder, train()), 4, shuffle=True)
    assert loader.fingerprint() == mine
    assert mine == of(torch.utils.data.DataLoader)
    assert mine.endswith("batches:6")
    assert mine not in (of(headrace.DataLoader, 6), of(headrace.DataLoader, 5, 1))
    batch = torch.zeros(2, 3)
    variants = [
        batch,
        batch.view(3, 2),
        batch.double(),
        batch + 1,
        [batch],
        {"a": batch},
        {"b": batch},
    ]
    assert len({headrace.fingerprint([each]) for each in variants}) == len(variants)
    assert_same(headrace.fingerprint([batch.t()]), headrace.fingerprint([batch.t().contiguous()]))
