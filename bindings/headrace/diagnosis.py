"""What a diagnosis is made of: the run behind the traces, its accounting, and findings about it."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from headrace.trace import KINDS, Step, Trace

# Fewer say nothing; fewer than FIRM_STEPS say little.
LEAST_STEPS, FIRM_STEPS = 3, 5

KIND_NAMES = {
    "compute": "compute",
    "communication": "communication, not hidden",
    "copy": "copies, not hidden",
    "loader": "GPU idle, loader waited for",
    "allocation": "GPU idle, in allocation",
    "host": "GPU idle, host at work",
    "unknown": "GPU idle, unknown",
}
CPU_KIND_NAMES = {"loader": "loop waiting in the loader", "host": "the loop's own work"}


@dataclass(frozen=True)
class Finding:
    """One place where time goes.

    Attributes:
        layer: "data", "communication", "kernel", "memory" or "unknown".
        kind: which of the layer's ailments.
        level: "high", "moderate", or "none" when nothing could be told.
        title: the finding in a line.
        ms_per_step: what may be won back, in milliseconds per step.
        evidence, treatment: sentences; treatments in the order of their cost.
    """

    layer: str
    kind: str
    level: str
    title: str
    ms_per_step: float = 0.0
    evidence: list[str] = field(default_factory=list)
    treatment: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Rank:
    """The traces of one process, in the order of time."""

    number: int | None
    traces: list[Trace]

    @property
    def steps(self) -> list[Step]:
        """Those of all traces."""
        return [step for trace in self.traces for step in trace.steps]

    def mean_ms(self, value: Callable[[Step], int]) -> float:
        """Mean over the steps, of nanoseconds."""
        return statistics.fmean(map(value, self.steps)) / 1e6

    def kind_ms(self, kind: str) -> float:
        """Mean time of one of KINDS."""
        return self.mean_ms(lambda step: step.time_ns[kind])

    def total(self, name: str) -> int:
        """A counter of headrace::TraceSummary, over the traces."""
        return sum(int(trace.summary[name]) for trace in self.traces)

    @property
    def step_ms(self) -> float:
        """Mean step."""
        return self.mean_ms(lambda step: step.duration_ns)

    def __str__(self) -> str:
        return "the process" if self.number is None else f"rank {self.number}"


class Run:
    """One training, as its traces show it."""

    def __init__(self, traces: Iterable[Trace]) -> None:
        self.traces = list(traces)
        by_rank: dict[int | None, list[Trace]] = {}
        for trace in self.traces:
            by_rank.setdefault(trace.rank, []).append(trace)
        self.ranks = [
            Rank(number, sorted(found, key=lambda trace: trace.begin_ns))
            for number, found in sorted(by_rank.items(), key=lambda item: item[0] or 0)
        ]

    def mean(self, value: Callable[[Rank], float]) -> float:
        """Mean over the ranks."""
        return statistics.fmean(map(value, self.ranks))

    def kind_ms(self, kind: str) -> float:
        """Mean time per step of one of KINDS."""
        return self.mean(lambda rank: rank.kind_ms(kind))

    def share(self, kind: str) -> float:
        """The same of the mean step, 0 to 1."""
        return self.kind_ms(kind) / self.step_ms if self.step_ms else 0.0

    def total(self, name: str) -> int:
        """A counter of headrace::TraceSummary, over all traces."""
        return sum(rank.total(name) for rank in self.ranks)

    def per_step(self, name: str) -> float:
        """The same for each step of each rank."""
        return self.total(name) / self.step_count

    @property
    def step_ms(self) -> float:
        """Mean step."""
        return self.mean(lambda rank: rank.step_ms)

    @property
    def median_step_ms(self) -> float:
        """Median over all steps."""
        return statistics.median(s.duration_ns for r in self.ranks for s in r.steps) / 1e6

    @property
    def step_count(self) -> int:
        """Steps of all ranks."""
        return sum(len(rank.steps) for rank in self.ranks)

    @property
    def has_steps(self) -> bool:
        """Whether every trace is divided into steps."""
        return all(trace.summary["has_steps"] for trace in self.traces)

    @property
    def has_gpu_events(self) -> bool:
        """Whether there is any kernel, copy or fill."""
        return self.total("device_events") > 0

    @property
    def trains_on_cpu(self) -> bool:
        """No GPU events, and nothing that speaks of a GPU that should have had some."""
        if self.has_gpu_events or self.total("runtime_calls") > 0:
            return False
        devices = {trace.sidecar.get("device") for trace in self.traces} - {None}
        return devices == {"cpu"} or not (devices or any(trace.device for trace in self.traces))

    @property
    def world_size(self) -> int | None:
        """Ranks that trained, traced or not."""
        return next((t.world_size for t in self.traces if t.world_size is not None), None)

    @property
    def loader_name(self) -> str:
        """The class of the loader's iterator; empty if the loader doesn't show."""
        name = next((t.summary["loader_name"] for t in self.traces if t.summary["loader_name"]), "")
        return str(name).partition("#")[2].removesuffix(".__next__") or str(name)

    @property
    def gpu(self) -> dict[str, Any]:
        """Properties of the GPU; empty if not recorded."""
        return self.traces[0].device

    @property
    def verdict(self) -> str:
        """How far the steps carry: "firm", "weak" or "none"."""
        if not self.has_steps:
            return "weak"
        if self.step_count < LEAST_STEPS:
            return "none"
        # Of many ranks each may have had a single step: together they tell the ranks apart.
        few = min(len(rank.steps) for rank in self.ranks) < FIRM_STEPS
        return "weak" if few else "firm"

    def accounting(self) -> dict[str, dict[str, float]]:
        """Milliseconds per step and percent of it, by KINDS; the percents add up to 100."""
        return {
            kind: {"ms_per_step": self.kind_ms(kind), "percent": 100 * self.share(kind)}
            for kind in KINDS
        }

    def kind_names(self) -> dict[str, str]:
        """What the kinds mean for this run."""
        return KIND_NAMES if self.has_gpu_events else CPU_KIND_NAMES
