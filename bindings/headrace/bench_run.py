"""One measured epoch of one loader."""

import multiprocessing
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import PIL
import torch
import torchvision
from torch import nn
from torch.utils.data import RandomSampler

from headrace import __version__
from headrace.loader import DataLoader


@dataclass(frozen=True)
class Workload:
    """What every configuration has to do.

    Attributes:
        dataset: a Subset of an ImageFolder.
        images: drawn in an epoch, in random order; the dataset several times over where it is
            smaller.
        cold: whether the files are dropped from the page cache first.
        train: whether a training step follows each batch.
        classes: for that training.
    """

    dataset: Any
    images: int
    batch_size: int
    cold: bool
    train: bool
    classes: int

    @property
    def paths(self) -> list[str]:
        """The files of the dataset."""
        samples = self.dataset.dataset.samples
        return [samples[index][0] for index in self.dataset.indices]


@dataclass(frozen=True)
class Configuration:
    """One way to load. `threads` are headrace's; torch has worker processes only."""

    system: str
    num_workers: int
    threads: int | None

    def loader(self, workload: Workload) -> Any:
        """A new loader, with an order that is the same for all."""
        kind: Any = torch.utils.data.DataLoader if self.system == "torch" else DataLoader
        options = {} if self.threads is None else {"threads": self.threads}
        generator = torch.Generator().manual_seed(0)
        return kind(
            workload.dataset,
            workload.batch_size,
            sampler=RandomSampler(
                workload.dataset, num_samples=workload.images, generator=generator
            ),
            num_workers=self.num_workers,
            **options,
        )


@dataclass
class Run:
    """What one epoch took, from iter() to its last batch."""

    images: int = 0
    seconds: float = 0.0
    first_batch_s: float = 0.0
    wait_s: float = 0.0  # inside next()
    cpu_s: float = 0.0  # of this process and its workers
    file_bytes: int = 0
    step_ms: float = 0.0
    stats: dict[str, Any] = field(default_factory=dict)


def measure(workload: Workload, configuration: Configuration) -> Run:
    """Runs one epoch."""
    paths = workload.paths
    if workload.cold:
        _drop_from_page_cache(paths)
    step = _training_step(workload.classes) if workload.train else None
    loader = configuration.loader(workload)
    run = Run()
    steps_ms = []
    torch.manual_seed(0)
    cpu = _cpu_seconds()
    start = time.perf_counter()
    iterator = iter(loader)
    while True:
        asked = time.perf_counter()
        batch = next(iterator, None)
        arrived = time.perf_counter()
        run.wait_s += arrived - asked
        if batch is None:
            break
        run.first_batch_s = run.first_batch_s or arrived - start
        run.images += len(batch[1])
        if step is not None:
            step(*batch)
            steps_ms.append((time.perf_counter() - arrived) * 1e3)
        del batch
    run.seconds = time.perf_counter() - start
    del iterator  # torch's workers are waited for here, and their CPU time counted
    run.cpu_s = _cpu_seconds() - cpu
    run.stats = loader.stats() if isinstance(loader, DataLoader) else {}
    run.step_ms = statistics.median(steps_ms) if steps_ms else 0.0
    sizes = [os.path.getsize(path) for path in paths]
    run.file_bytes = round(sum(sizes) / len(sizes) * run.images)
    return run


def _cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _drop_from_page_cache(paths: list[str]) -> None:
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)  # pages that are not on the disk yet would stay
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


# --- training -----------------------------------------------------------------------------------


def _training_step(classes: int) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """A small network on one thread: more would fight with the loaders for the cores."""
    torch.set_num_threads(1)

    def block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()
        )

    network = nn.Sequential(
        nn.AvgPool2d(4),
        block(3, 16),
        block(16, 32),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, classes),
    )
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loss_of = nn.CrossEntropyLoss()

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss_of(network(images), labels).backward()
        optimizer.step()

    return step


def step_alone_ms(workload: Workload) -> float:
    """The median time of a training step on a batch that is there already."""
    step = _training_step(workload.classes)
    images = torch.randn(workload.batch_size, 3, 224, 224)
    labels = torch.zeros(workload.batch_size, dtype=torch.int64)
    times_ms = []
    for _ in range(30):
        start = time.perf_counter()
        step(images, labels)
        times_ms.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times_ms)


# --- memory -------------------------------------------------------------------------------------


def peak_memory_mb(workload: Workload, configuration: Configuration) -> float:
    """The most that 16 batches in a process of its own take, its workers included, in MB of 10^6.

    Pages that several processes share are counted once (Pss of /proc/PID/smaps_rollup). What is
    sampled from outside, every 20 ms, disturbs no measurement of time.
    """
    short = replace(workload, images=min(workload.images, 16 * workload.batch_size))
    process = multiprocessing.get_context("fork").Process(
        target=measure, args=(short, configuration)
    )
    process.start()
    assert process.pid is not None
    peak = 0
    while process.is_alive():
        peak = max(peak, sum(_pss_bytes(pid) for pid in (process.pid, *_children(process.pid))))
        process.join(0.02)
    return peak / 1e6


def _children(pid: int) -> list[int]:
    try:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []


def _pss_bytes(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # it has ended
    return 0


# --- surroundings -------------------------------------------------------------------------------


def environment(cold: bool) -> dict[str, Any]:
    """What a figure depends on besides the loader."""
    return {
        "headrace": __version__,
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "pillow": PIL.__version__,
        "python": platform.python_version(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "page_cache": "cold" if cold else "warm",
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
