"""The samples of a batch as C++ looks them up in a table, compares and converts them."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from headrace._core import BufferPool, Engine, Question, RandomStream, Samples, Transform
from headrace.recipe import to_json
from support import assert_same_behaviour, begin, evaluation, step, train

KINDS = (str, bytes, os.PathLike)


def pair(path: Any, label: Any = 0) -> tuple[Any, Any]:
    """A new object, whatever the compiler makes of constants."""
    return tuple([path, label])  # type: ignore[return-value]  # noqa: C409


def engine() -> Engine:
    return Engine(
        Transform(to_json(evaluation())),
        [RandomStream(0)],
        pool=BufferPool(2),
        threads=1,
        read_budget_bytes=1 << 20,
        max_batches_in_flight=9,
        pixel_limit=1 << 20,
    )


def named(samples: Samples, directory: str | None = None) -> list[str]:
    """The paths that the engine gets; there are no such files, so that it asks for each."""
    paths = []
    user = engine()
    user.submit(0, samples, directory)
    for _ in range(len(samples)):
        question = user.next(60_000)
        assert isinstance(question, Question)
        paths.append(question.path)
        user.skip(question, question.random)
    user.close()
    return paths


def test_a_table_is_looked_up_as_python_does() -> None:
    class Table:
        def __getitem__(self, place: Any) -> Any:
            return [f"{place}.jpg", place]

    listed = [pair("a"), ["b", 1], iter(["c", 2])]
    assert [row[:2] for row in Samples(listed, [-3, True], KINDS)] == [("a", 0), ("b", 1)]
    assert [row[:2] for row in Samples(tuple(listed), [2], KINDS)] == [("c", 2)]
    assert list(Samples(Table(), [7], KINDS)) == [("7.jpg", 7, 7, False)]
    for places in ([3], [2**80], [-4]):
        with pytest.raises(IndexError):
            Samples(listed, places, KINDS)
    for wrong in (["x"], ["x", 1, 2], 3):
        with pytest.raises((ValueError, TypeError)):
            Samples([wrong], [0], KINDS)
    with pytest.raises(TypeError):
        list(Samples([pair(None)], [0], KINDS))


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (pair("a", 1), True),
        (["a", 1], True),
        (pair("b", 1), False),
        (pair("a", True), False),
        (pair("a", 1.0), False),
        (pair(b"a", 1), False),
        (pair(Path("a"), 1), False),
    ],
)
def test_samples_are_the_same_if_equal_and_of_equal_types(other: Any, same: bool) -> None:
    samples = Samples([pair("a", 1)], [0], KINDS)
    assert samples.same_as(Samples([other], [0], KINDS)) == same
    assert not samples.same_as(Samples([other, other], [0, 1], KINDS))


def test_only_pairs_that_cannot_change_are_known_to_be_the_same() -> None:
    plain, odd = [pair("/a"), pair("/b")], [["/a", 0], pair("/b")]
    for table, known in ((plain, True), (odd, False), ([pair(Path("/a"))] * 2, False)):
        samples = Samples(table, [0, 1], KINDS)
        assert not samples.still_in(table, [0, 1])  # before anybody has looked into them
        named(samples)
        assert samples.still_in(table, [0, 1]) == known
        assert not samples.still_in(table, [1, 0])
        assert not samples.still_in(table, [0])
        assert not samples.still_in([], [0, 1])
    samples = Samples(plain, [0, 1], KINDS)
    named(samples)
    plain[1] = pair("/b")
    assert not samples.still_in(plain, [0, 1])


@pytest.mark.parametrize("path", ["a/b.jpg", "/a.jpg", "ä.jpg", "", "\udcff.jpg", Path("c"), b"d"])
@pytest.mark.parametrize("directory", ["/x", "/", "/ü", "/\udcfe/", None])
def test_relative_paths_begin_in_the_directory(path: Any, directory: str | None) -> None:
    kinds = (str, os.PathLike)
    if isinstance(path, bytes):
        with pytest.raises(TypeError):
            named(Samples([pair(path)], [0], kinds), directory)
        return
    wanted = os.fspath(path) if directory is None else os.path.join(directory, path)
    assert named(Samples([pair(path)] * 2, [0, 1], kinds), directory) == [wanted] * 2


@pytest.mark.parametrize("label", [2**63, -(2**63) - 1, True, 1.0, None, "1"])
def test_labels_are_ints_of_64_bits(label: Any) -> None:
    user = engine()
    with pytest.raises((TypeError, OverflowError)):
        user.submit(0, Samples([pair("/a", label)], [0], KINDS))
    user.submit(0, Samples([pair("/a", 2**63 - 1), pair("/a", -(2**63))], [0, 1], KINDS))
    assert user.in_flight == 1
    user.close()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_pairs_that_are_lists_change_in_place(mixed_pictures: Path, num_workers: int) -> None:
    def build(loader_type: Any) -> DataLoader[Any]:
        folder = ImageFolder(mixed_pictures, train())
        folder.samples = [list(each) for each in folder.samples]
        return loader_type(folder, batch_size=4, num_workers=num_workers)  # type: ignore[no-any-return]

    def drive(loader: Any) -> Iterator[Any]:
        for _ in range(2):
            iterator = begin(loader)
            for number in range(7):
                if num_workers == 0 or number == 6:
                    loader.dataset.samples[number * 4 + 5][1] += 50
                yield step(iterator)

    assert_same_behaviour(build, drive)
