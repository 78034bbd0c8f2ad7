"""headrace.stalls: the differential measurement, with times that the test makes."""

import time
from pathlib import Path

import pytest

import headrace
from headrace.differential import Stalls, stalls


class Loader:
    """Prepares for 20 ms, and 30 ms longer on its first way through: as from a cold disk."""

    def __init__(self) -> None:
        self.iterations = 0

    def __iter__(self) -> "Loader":
        self.iterations += 1
        return self

    def __next__(self) -> int:
        time.sleep(0.05 if self.iterations == 1 else 0.02)
        return self.iterations


def test_causes_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "a.jpg"
    file.write_bytes(b"x" * 1000)
    found = headrace.stalls(Loader(), lambda batch: time.sleep(0.01), files=[file], steps=4)
    # Sleeping takes at least as long; the order holds on any machine.
    assert found.replayed_ms >= 10
    assert found.warm_ms >= 30
    assert found.cold_ms is not None and found.cold_ms >= 60
    assert file.read_bytes() == b"x" * 1000


def test_without_files_nothing_is_said_of_fetching() -> None:
    found = stalls(Loader(), lambda batch: None, steps=3)
    assert found.fetch_ms is None
    assert "not measured" in str(found)


def test_the_stalls_are_differences() -> None:
    found = Stalls(replayed_ms=10, warm_ms=35, cold_ms=60)
    assert (found.preparation_ms, found.fetch_ms) == (25, 25)
    assert str(found) == (
        "a step takes 10.0 ms when nothing is loaded; preparation stall 25.0 ms; "
        "fetch stall 25.0 ms"
    )
    assert Stalls(10, 9, 8).preparation_ms == 0


def test_too_few_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="needs 3 batches"):
        stalls([1, 2], lambda batch: None)
