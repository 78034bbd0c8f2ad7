"""Writes traces as torch.profiler does, small ones, from what happens in a step."""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class TraceWriter:
    """Collects events; times in microseconds. `now` is where the next step begins."""

    def __init__(self, **metadata: Any) -> None:
        self.events: list[Event] = []
        self.now = 1000.0
        self._correlation = 0
        self._number = 0
        self.metadata = {
            "schemaVersion": 1,
            "deviceProperties": [
                {"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 80 << 30, "computeMajor": 9}
            ],
            **metadata,
        }

    def event(self, category: str, name: str, ts: float, dur: float, **args: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur}
            | ({"args": args} if args else {})
        )

    def kernel(
        self,
        ts: float,
        dur: float,
        name: str = "elementwise_kernel",
        launch: float | None = None,
        category: str = "kernel",
        **args: Any,
    ) -> None:
        """Device work and the call that launched it."""
        self._correlation += 1
        at = ts - 5 if launch is None else launch
        self.event("cuda_runtime", "cudaLaunchKernel", at, 2, correlation=self._correlation)
        device = {"device": 0, "stream": 7, "correlation": self._correlation}
        self.event(category, name, ts, dur, **device, **args)

    def copy(self, ts: float, dur: float, memory: str) -> None:
        self.kernel(ts, dur, f"Memcpy HtoD ({memory} -> Device)", category="gpu_memcpy", bytes=1024)

    def loader(self, ts: float, dur: float, kind: str = "_SingleProcessDataLoaderIter") -> None:
        self.event("user_annotation", f"enumerate(DataLoader)#{kind}.__next__", ts, dur)

    def memory(self, ts: float, allocated: int, reserved: int, device_type: int = 1) -> None:
        args = {
            "Device Type": device_type,
            "Device Id": 0,
            "Bytes": 512,
            "Total Allocated": allocated,
            "Total Reserved": reserved,
        }
        self.events.append({"ph": "i", "s": "t", "name": "[memory]", "ts": ts, "args": args})

    def step(self, dur: float) -> float:
        """Begins a step; returns where it begins."""
        begin, self.now = self.now, self.now + dur
        self._number += 1
        self.event("user_annotation", f"ProfilerStep#{self._number}", begin, dur)
        self.event("cpu_op", "aten::linear", begin + 1, 1)
        return begin

    def text(self) -> str:
        return json.dumps({**self.metadata, "traceEvents": self.events})

    def write(self, path: Path) -> Path:
        data = self.text().encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return path


def steps(writer: TraceWriter, count: int = 6, dur: float = 100_000) -> Iterable[float]:
    """The begins of so many steps of 100 ms."""
    return [writer.step(dur) for _ in range(count)]
