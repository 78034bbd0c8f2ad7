"""loader.report(): counters in words."""

from pathlib import Path
from typing import Any

import pytest
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
from headrace.report import in_words
from support import jpeg, write_folder

SECOND = 10**9


def stats(**changes: Any) -> dict[str, Any]:
    """Ten seconds of two threads, half of it waited for; stages by their seconds of work."""
    seconds = {"read": 1.0, "decode": 1.0, "transform": 1.0, "held_back": 0.0} | changes
    stages = {
        name: {
            "items": 1000,
            "bytes": 10**6,
            "busy_ns": int(seconds[name] * SECOND),
            "waiting_ns": int(seconds["held_back"] * SECOND) if name == "read" else 0,
        }
        for name in ("read", "decode", "transform")
    }
    return {
        "reader": "pread",
        "threads": 2,
        "io_threads": 4,
        "stages": stages,
        "batches": 100,
        "consumer_wait_ns": int(changes.get("wait", 5.0) * SECOND),
        "wall_ns": 10 * SECOND,
        "ready_batches_sum": 150,
        "questions": changes.get("questions", 0),
        "rollbacks": 0,
    }


@pytest.mark.parametrize(
    ("changes", "cores", "words"),
    [
        ({"wait": 0.1}, 8, "not limiting: waiting for data 1 % of the time, 1.5 batches ready"),
        (
            {"decode": 12.0, "transform": 7.4},
            8,
            "decode-bound: 2 threads busy 97 %; 2 more would remove the wait",
        ),
        ({"decode": 7.0, "transform": 12.0}, 8, "transform-bound: 2 threads busy 95 %"),
        ({"decode": 19.0, "wait": 9.0}, 4, "2 more (threads=) would shorten the wait"),
        ({"decode": 19.0}, 2, "but all 2 cores are in use"),
        ({"read": 38.0}, 8, "read-bound: files are being read 95 % of the time"),
        ({"held_back": 6.0}, 8, "held back by read_budget_bytes 60 % of the time"),
        ({"questions": 100}, 8, "Pillow-bound: 9 % of the samples"),
        ({}, 8, "too little ahead"),
    ],
)
def test_the_limiting_stage_is_named(changes: dict[str, Any], cores: int, words: str) -> None:
    assert words in in_words(stats(**changes), cores)


def test_a_loader_reports_on_its_latest_iteration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = ImageFolder(
        str(write_folder(tmp_path, {f"{i:02}.jpg": jpeg((48, 40), i) for i in range(24)})),
        transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()]),
    )
    loader = headrace.DataLoader(dataset, batch_size=4, num_workers=2, threads=1)
    assert loader.report().startswith("no native iteration yet")
    assert len(list(loader)) == 6
    counters = loader.stats()
    assert counters["wall_ns"] >= counters["consumer_wait_ns"] > 0
    text = loader.report()
    assert text in capsys.readouterr().out
    assert "batches ready on average" in text
