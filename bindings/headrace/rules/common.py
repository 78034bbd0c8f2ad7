"""What the rules of several layers use."""

from collections.abc import Callable
from typing import Any

from headrace.diagnosis import Run
from headrace.trace import Trace


def level_of(share: float, thresholds: tuple[float, float]) -> str | None:
    """Which threshold a share reaches: "moderate" or "high"; None below both."""
    moderate, high = thresholds
    # To a tenth of a percent, as it is printed.
    share = round(share, 3)
    return "high" if share >= high else "moderate" if share >= moderate else None


def to_device(run: Run, memory: str, exposed: bool) -> float:
    """Host-to-device copies from one of MEMORIES, or what of them is not hidden: ms per step."""
    return run.mean(
        lambda rank: rank.mean_ms(
            lambda s: (s.to_device_exposed_ns if exposed else s.to_device_ns)[memory]
        )
    )


def top_kernels(run: Run, wanted: Callable[[dict[str, Any]], bool], count: int) -> list[str]:
    """Evidence: the kernels with the most time, and where the longest call of each is."""
    found: list[tuple[dict[str, Any], Trace]] = [
        (kernel, trace)
        for trace in run.traces
        for kernel in trace.summary["kernels"]
        if wanted(kernel)
    ]
    found.sort(key=lambda item: -item[0]["time_ns"])
    return [
        f"{short(kernel['name'])}: {kernel['calls']} calls, longest "
        f"{(kernel['longest_ns'][1] - kernel['longest_ns'][0]) / 1e6:.2f} ms, "
        f"{trace.at_ms(kernel['longest_ns'][0])}"
        for kernel, trace in found[:count]
    ]


def short(name: str, limit: int = 90) -> str:
    """A kernel's name, cut off: templates go on for pages."""
    name = name.removeprefix("void ")
    return name if len(name) <= limit else name[: limit - 3] + "..."
