"""Memory: near the limit, and idle time in allocation."""

from typing import Any

from headrace.diagnosis import Finding, Run
from headrace.rules.common import level_of
from headrace.trace import Trace

MEMORY = (0.90, 0.95)  # of the card
ALLOCATION = (0.05, 0.20)


def limit_findings(run: Run) -> list[Finding]:
    """The trace whose memory is nearest to the limit."""
    found = []
    for trace in run.traces:
        retries = int(trace.sidecar.get("memory", {}).get("alloc_retries", 0))
        for memory in trace.summary["memory"]:
            finding = _memory_of(run, trace, memory, retries)
            if finding is not None:
                found.append(finding)
    return sorted(found, key=lambda finding: finding.level)[:1]  # the worst: "high" comes first


def _memory_of(run: Run, trace: Trace, memory: dict[str, Any], retries: int) -> Finding | None:
    total = int(trace.device.get("totalGlobalMem", 0))
    share = memory["peak_reserved"] / total if total else 0.0
    level = level_of(share, MEMORY)
    if memory["out_of_memory"] or retries:
        level = "high"
    if level is None:
        return None
    gib = 2**30
    stays = memory["lowest_allocated"]
    comes = memory["peak_allocated"] - stays
    evidence = [
        f"peak reserved {memory['peak_reserved'] / gib:.2f} of {total / gib:.2f} GiB "
        f"({100 * share:.1f} %), peak allocated {memory['peak_allocated'] / gib:.2f} GiB, "
        f"{trace.at_ms(memory['peak_ns'])}",
        f"{stays / gib:.2f} GiB stay (weights, gradients, optimizer), {comes / gib:.2f} GiB come "
        "and go (activations, workspaces)",
    ]
    if retries:
        evidence.append(f"{retries} allocation retries: the cache was emptied to go on")
    if memory["out_of_memory"]:
        evidence.append(f"{memory['out_of_memory']} out-of-memory events")
    # What retries cost shows as idle time in allocation.
    return Finding(
        "memory",
        "near-limit",
        level,
        f"memory is near its limit: {100 * share:.1f} % of the card reserved",
        run.kind_ms("allocation"),
        evidence,
        _memory_treatment(comes, stays),
    )


def _memory_treatment(comes: int, stays: int) -> list[str]:
    gib = 2**30
    return [
        f"a smaller batch with accumulation: half of it frees about {comes / 2 / gib:.2f} GiB",
        "recomputation (torch.utils.checkpoint): frees most of the same "
        f"{comes / gib:.2f} GiB for about a third more compute",
        f"mixed precision: about half of the activations, {comes / 2 / gib:.2f} GiB",
        f"sharding (ZeRO, FSDP) over N ranks: leaves 1/N of the {stays / gib:.2f} GiB that stay",
    ]


def allocation_findings(run: Run) -> list[Finding]:
    """Idle time while the driver allocates or frees."""
    ms = run.kind_ms("allocation")
    level = level_of(run.share("allocation"), ALLOCATION)
    if level is None:
        return []
    return [
        Finding(
            "memory",
            "allocation",
            level,
            f"the GPU idles while memory is allocated or freed: {100 * run.share('allocation'):.1f}"
            " % of the step",
            ms,
            [
                f"{ms:.1f} ms a step in {run.per_step('allocations'):.1f} allocations and "
                f"{run.per_step('frees'):.1f} frees by the driver (cudaMalloc, cudaFree)"
            ],
            [
                "a step that is in its stride allocates nothing: take warm-up out of the profile, "
                "and torch.cuda.empty_cache() out of the loop",
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True where sizes vary",
                "a smaller batch with accumulation where memory is full",
            ],
        )
    ]
