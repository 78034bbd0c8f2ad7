"""Which reader runs, and what it is allowed to use: arguments, fall-back, threads."""

import ctypes
import os
import re
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torchvision.datasets import ImageFolder

from headrace import DataLoader
from lifetime import threads
from support import assert_same_behaviour, epochs, train

READERS = ["auto", "io_uring", "pread"]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_torchs_with_each_reader(pictures: Path, reader: str, num_workers: int) -> None:
    def build(kind: type[TorchLoader[Any]]) -> TorchLoader[Any]:
        ours = {"reader": reader} if kind is DataLoader else {}
        return kind(
            ImageFolder(str(pictures), train()), 3, shuffle=True, num_workers=num_workers, **ours
        )

    assert_same_behaviour(build, epochs(2))


def test_stats_name_the_reader_and_its_limits(pictures: Path) -> None:
    loader = DataLoader(ImageFolder(str(pictures), train()), 4, reader="pread", num_workers=1)
    for _ in loader:
        pass
    stats = loader.stats()
    assert (stats["reader"], stats["reader_note"]) == ("pread", "")
    assert stats["read_depth"] == stats["io_threads"] == 4
    assert 0 < stats["read_ahead_bytes"] <= loader.read_budget_bytes


def choose_a_reader(folder: str) -> None:
    def run() -> dict[str, Any]:
        dataset = torch.utils.data.ConcatDataset([ImageFolder(folder, train())] * 40)
        loader = DataLoader(dataset, 8, num_workers=1)
        for _ in loader:
            pass
        return loader.stats()

    first, second = run(), run()
    assert first["reader"] in ("pread", "io_uring")
    # At least 64 of each: one may be ahead when the other has them.
    assert re.match(r"measured: pread \d{2,} reads|read: io_uring cannot", first["reader_note"])
    chosen = ("reader", "reader_note")
    assert [second[key] for key in chosen] == [first[key] for key in chosen]


def test_auto_measures_once_a_process(isolated: Any, pictures: Path) -> None:
    isolated(choose_a_reader, pictures)


def test_an_unknown_reader_is_refused(pictures: Path) -> None:
    with pytest.raises(ValueError, match="'auto', 'io_uring' or 'pread'; got 'mmap'"):
        DataLoader(ImageFolder(str(pictures), train()), reader="mmap")


def forbid(call: int) -> None:
    """Has a system call fail with EPERM from here on, as container runtimes do."""
    load, jump_if_equal, give = 0x20, 0x15, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000 | 1
    program = b"".join(
        struct.pack("HBBI", *line)
        for line in [
            (load, 0, 0, 0),
            (jump_if_equal, 0, 1, call),
            (give, 0, 0, refuse),
            (give, 0, 0, allow),
        ]
    )
    buffer = ctypes.create_string_buffer(program, len(program))
    filters = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in [(38, 1, 0, 0, 0), (22, 2, filters)]:  # no new privileges; seccomp's filter
        assert libc.prctl(*arguments) == 0, os.strerror(ctypes.get_errno())


def read_without_io_uring(folder: str, reader: str) -> None:
    io_uring_setup = 425
    forbid(io_uring_setup)
    loader = DataLoader(ImageFolder(folder, train()), 4, reader=reader, num_workers=1)
    assert sum(len(labels) for _, labels in loader) == len(loader.dataset)
    stats = loader.stats()
    assert stats["reader"] == "pread"
    forbidden = "read: io_uring cannot be used: Operation not permitted"
    assert stats["reader_note"] == ("" if reader == "pread" else forbidden)


@pytest.mark.parametrize("reader", READERS)
def test_without_io_uring_pread_reads(isolated: Any, pictures: Path, reader: str) -> None:
    isolated(read_without_io_uring, pictures, reader)


def name_threads(folder: str) -> None:
    torch.set_num_threads(1)
    loader = DataLoader(ImageFolder(folder, train()), 2, threads=2, reader="pread", num_workers=1)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    names = threads()
    assert [name for name in names if name.startswith("hr-io")] == [f"hr-io-{i}" for i in range(4)]
    decoders = {name for name in names if name.startswith("hr-cpu")}
    assert decoders and decoders <= {"hr-cpu-0", "hr-cpu-1"}
    iterator.close()
    assert not any(name.startswith("hr-io") for name in threads())


def test_threads_have_names(isolated: Any, pictures: Path) -> None:
    isolated(name_threads, pictures)


def threads_of(pictures: Path, **options: Any) -> int:
    loader = DataLoader(ImageFolder(str(pictures), train()), 4, num_workers=1, **options)
    for _ in loader:
        pass
    return int(loader.stats()["threads"])


def test_threads_are_this_ranks_part_of_the_cores(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    every = threads_of(pictures)
    assert 1 <= every <= len(os.sched_getaffinity(0))
    assert threads_of(pictures, reserve_cpus=1) == max(1, every - 1)
    assert threads_of(pictures, reserve_cpus=1000) == 1
    assert threads_of(pictures, threads=7, reserve_cpus=1) == 7
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert threads_of(pictures) == max(1, every // 2)


def test_less_than_no_core_cannot_be_reserved(pictures: Path) -> None:
    with pytest.raises(ValueError, match="reserve_cpus must be at least 0; got -1"):
        DataLoader(ImageFolder(str(pictures), train()), reserve_cpus=-1)
