"""headrace.profile: records some steps of any training loop and prints the diagnosis."""

import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from rich.console import Console
from torch.profiler import ProfilerAction, ProfilerActivity, schedule
from torch.profiler import profile as TorchProfile

from headrace._core import __version__
from headrace.trace import SIDECAR_SUFFIX

_COUNTERS = {"items", "bytes", "busy_ns", "waiting_ns", "batches", "consumer_wait_ns", "wall_ns"}
_COUNTERS |= {"ready_batches_sum", "questions", "rollbacks"}


class profile:
    """Profiles a training loop with torch.profiler and says where its time goes.

    ::

        with headrace.profile("before", loader=loader) as profiler:
            for images, labels in loader:
                train(images, labels)
                profiler.step()

    Writes a trace (`rank0-0.pt.trace.json.gz`) and beside it a sidecar with what the trace lacks
    (`rank0-0.headrace.json`): GPU, world size, batch, dtype, versions, flags, the loader's counters
    and those of torch's allocator. `headrace doctor DIRECTORY` reads them again, for all ranks;
    `headrace compare` compares two directories.

    Args:
        directory: where to write; made if absent.
        loader: of the loop, torch's or headrace's; its batch size and counters are recorded.
        batch_size: samples a step; None: the loader's.
        dtype: what the training computes in, such as torch.bfloat16; None: not recorded.
        wait, warmup, active, repeat: torch.profiler.schedule's. Each repetition is a trace.
        record_shapes, profile_memory, with_stack: torch.profiler.profile's.
        verdict: whether to print the diagnosis at the end (rank 0 does).

    Works with torch's DataLoader as with headrace's. Without a GPU the diagnosis is about the
    loop's time waiting in the loader.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        loader: Any = None,
        batch_size: int | None = None,
        dtype: torch.dtype | None = None,
        wait: int = 1,
        warmup: int = 2,
        active: int = 5,
        repeat: int = 1,
        record_shapes: bool = False,
        profile_memory: bool = True,
        with_stack: bool = False,
        verdict: bool = True,
    ) -> None:
        self.directory = Path(directory)
        self.traces: list[Path] = []
        self._loader = loader
        self._batch_size = batch_size or getattr(loader, "batch_size", None)
        self._dtype = dtype
        self._verdict = verdict
        self._rank = _environment("RANK", 0)
        self._flags = {
            "record_shapes": record_shapes,
            "profile_memory": profile_memory,
            "with_stack": with_stack,
        }
        self._steps = 0
        self._least_steps = wait + warmup + active
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._allocator = _allocator_counts()
        self._counters: dict[str, Any] = {}  # the loader's, when recording began
        self._profiler = TorchProfile(
            activities=activities,
            schedule=schedule(wait=wait, warmup=warmup, active=active, repeat=repeat),
            on_trace_ready=self._write,
            record_shapes=record_shapes,
            profile_memory=profile_memory,
            with_stack=with_stack,
        )

    def __enter__(self) -> "profile":
        self.directory.mkdir(parents=True, exist_ok=True)
        self._profiler.__enter__()
        return self

    def step(self) -> None:
        """After each training step."""
        self._steps += 1
        recording = self._recording()
        self._profiler.step()
        if self._recording() and not recording:
            self._counters = self._loader_counters()

    def _recording(self) -> bool:
        recording = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
        return self._profiler.current_action in recording

    def _loader_counters(self) -> dict[str, Any]:
        stats: Callable[[], dict[str, Any]] = getattr(self._loader, "stats", dict)
        return stats()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._profiler.__exit__(kind, error, traceback)
        if kind is None and self._verdict and self._rank == 0:
            self._print_verdict()

    def _write(self, profiler: TorchProfile) -> None:
        stem = self.directory / f"rank{self._rank}-{len(self.traces)}"
        trace = Path(f"{stem}.pt.trace.json.gz")
        profiler.export_chrome_trace(str(trace))
        Path(f"{stem}{SIDECAR_SUFFIX}").write_text(json.dumps(self._sidecar(), indent=2) + "\n")
        self.traces.append(trace)

    def _sidecar(self) -> dict[str, Any]:
        cuda = torch.cuda.is_available()
        counters = _during(self._loader_counters(), self._counters)
        content: dict[str, Any] = {
            "headrace": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "cuda": torch.version.cuda or getattr(torch.version, "hip", None),
            "device": "cuda" if cuda else "cpu",
            "gpu": torch.cuda.get_device_name() if cuda else None,
            "rank": self._rank,
            "world_size": _environment("WORLD_SIZE", 1),
            "batch_size": self._batch_size,
            "dtype": None if self._dtype is None else str(self._dtype).removeprefix("torch."),
            "profiler": self._flags,
            "loader_class": None if self._loader is None else type(self._loader).__qualname__,
            "loader": counters,
        }
        if counters:
            from headrace.report import in_words

            content["loader_report"] = in_words(counters, len(os.sched_getaffinity(0)))
        if cuda:
            now = _allocator_counts()
            content["memory"] = {name: now[name] - self._allocator[name] for name in now}
        return content

    def _print_verdict(self) -> None:
        console = Console()
        if not self.traces:
            console.print(
                f"headrace: no trace, since the loop made {self._steps} of the {self._least_steps} "
                "steps that are needed. Make more, or pass a smaller active="
            )
            return
        from headrace.diagnosis import Run
        from headrace.doctor import render
        from headrace.rules import findings_of
        from headrace.trace import read_traces

        run = Run(read_traces([str(trace) for trace in self.traces]))
        console.print(render(run, findings_of(run)))
        console.print(f"traces: {self.directory}", highlight=False)


def _during(now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """What the loader's counters rose by; `now` if an iteration began meanwhile."""
    if not before or now["wall_ns"] < before["wall_ns"]:
        return now

    def rise(name: str, value: Any, old: Any) -> Any:
        if isinstance(value, dict):
            return {key: rise(key, one, old.get(key, 0)) for key, one in value.items()}
        counts = name in _COUNTERS and isinstance(old, int)
        return value - old if counts else value

    return {name: rise(name, value, before.get(name)) for name, value in now.items()}


def _environment(name: str, default: int) -> int:
    """From torchrun's variables, also before torch.distributed is initialised."""
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else default


def _allocator_counts() -> dict[str, int]:
    if not torch.cuda.is_available():
        return {}
    stats = torch.cuda.memory_stats()
    return {
        "alloc_retries": stats.get("num_alloc_retries", 0),
        "out_of_memory": stats.get("num_ooms", 0),
    }
