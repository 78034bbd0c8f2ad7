"""Where a training waits, without a trace: by taking causes away one after another.

After DS-Analyzer (Mohan et al., Analyzing and Mitigating Data Stalls in DNN Training, VLDB 2021).
"""

import os
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Stalls:
    """Median milliseconds per step: with one batch replayed, with files from memory, from disk."""

    replayed_ms: float
    warm_ms: float
    cold_ms: float | None

    @property
    def preparation_ms(self) -> float:
        """What decoding and transforming add."""
        return max(0.0, self.warm_ms - self.replayed_ms)

    @property
    def fetch_ms(self) -> float | None:
        """What reading from the disk adds to that."""
        return None if self.cold_ms is None else max(0.0, self.cold_ms - self.warm_ms)

    def __str__(self) -> str:
        fetch = "fetch stall: not measured, no files were named"
        if self.fetch_ms is not None:
            fetch = f"fetch stall {self.fetch_ms:.1f} ms"
        return (
            f"a step takes {self.replayed_ms:.1f} ms when nothing is loaded; preparation stall "
            f"{self.preparation_ms:.1f} ms; {fetch}"
        )


def stalls(
    loader: Iterable[Any],
    train: Callable[[Any], object],
    *,
    files: Iterable[str | os.PathLike[str]] | None = None,
    steps: int = 20,
) -> Stalls:
    """Measures a training step three times: the differences are causes, not correlations.

    Args:
        loader: of torch or headrace. It is iterated from its beginning twice or three times.
        train: one training step on a batch. GPU work is waited for here, not there.
        files: what the loader reads, to drop them from the page cache; None: not measured cold.
        steps: timed, at most. The first of each iteration, in which loading only starts, is not.

    Raises:
        ValueError: the loader gives fewer than three batches.
    """
    paths = None if files is None else [os.fspath(file) for file in files]
    cold_ms = None
    if paths is not None:
        _drop_from_cache(paths)
        cold_ms = _median_ms(loader, train, steps)
        for path in paths:
            with open(path, "rb") as file:
                file.read()
    warm_ms = _median_ms(loader, train, steps)
    batch = next(iter(loader))
    return Stalls(_median_ms([batch] * (steps + 1), train, steps), warm_ms, cold_ms)


def _median_ms(batches: Iterable[Any], train: Callable[[Any], object], steps: int) -> float:
    times: list[float] = []
    begin = time.perf_counter()
    for batch in batches:
        train(batch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        times.append(1000 * (now - begin))
        begin = now
        if len(times) > steps:
            break
    if len(times) < 3:
        raise ValueError(f"stalls() needs 3 batches at least; the loader gave {len(times)}")
    return statistics.median(times[1:])


def _drop_from_cache(paths: list[str]) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # pages that are not yet on the disk stay
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
