"""What the tests of lifetimes share: tiny datasets, loaders on them, and what a process holds."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from headrace import DataLoader, selfcheck
from headrace.output import Output
from headrace.recipe import to_json

TRANSFORM = v1.Compose([v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.ToTensor()])
COUNT = 24

# Without and with virtual workers: two iterators of their own kind.
WORKERS = [0, 2]


def warm_up() -> None:
    """Makes what every process would do once, so that forked ones find it done."""
    selfcheck.check(to_json(TRANSFORM), TRANSFORM, Output())


def make_pictures(folder: Path, count: int = COUNT, size: tuple[int, int] = (48, 40)) -> Path:
    """An ImageFolder with one class a picture: the labels that come out name the samples."""
    for number in range(count):
        (folder / f"{number:04}").mkdir(parents=True)
        Image.effect_noise(size, 50).convert("RGB").save(folder / f"{number:04}" / "x.jpg")
    return folder


def make_loader(folder: str, workers: int, **options: Any) -> DataLoader[Any]:
    options = {"batch_size": 4, "threads": 2, **options}
    loader = DataLoader(ImageFolder(folder, TRANSFORM), num_workers=workers, **options)
    explanation = loader.explain()
    assert explanation.native, explanation
    return loader


def labels(batches: Any) -> list[int]:
    return [label for _, batch in batches for label in batch.tolist()]


def threads() -> list[str]:
    """The names of this process's threads."""
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            names.append(Path(f"/proc/self/task/{task}/comm").read_text().strip())
        except OSError:
            continue  # it ended meanwhile
    return sorted(names)


def io_threads() -> list[str]:
    return [name for name in threads() if name.startswith("hr-io-")]


def descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def eventually(condition: Callable[[], Any], timeout_s: float = 20) -> bool:
    """For what the kernel does in its own time: a joined thread is listed a little longer."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def in_child(function: Callable[[], Any], at_once: bool = False) -> int:
    """Runs it in a forked child that then ends, as a whole interpreter or at once; its status."""
    child = os.fork()
    if child == 0:
        function()
        if at_once:
            os._exit(0)
        raise SystemExit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def same_batches(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b)
        for x, y in zip(one, other, strict=True)
        for a, b in zip(x, y, strict=True)
    )


def started(loader: DataLoader[Any]) -> Any:
    iterator = iter(loader)
    next(iterator)
    return iterator


def run_side_by_side(folder: str, workers: int) -> None:
    """Four loaders, a Python thread each, and four more taken in turn by one thread."""
    outcomes: list[Any] = []

    def consume() -> None:
        loader = make_loader(folder, workers)
        try:
            outcomes.append([labels(loader) for _ in range(5)])
        except BaseException as error:
            outcomes.append(error)

    consumers = [threading.Thread(target=consume) for _ in range(4)]
    for consumer in consumers:
        consumer.start()
    in_turn = zip(*[make_loader(folder, workers) for _ in range(4)], strict=True)
    for number, batches in enumerate(in_turn):
        assert all(labels([b]) == list(range(4 * number, 4 * number + 4)) for b in batches)
    for consumer in consumers:
        consumer.join()
    assert outcomes == [[list(range(COUNT))] * 5] * 4, outcomes
    assert eventually(lambda: not io_threads())
