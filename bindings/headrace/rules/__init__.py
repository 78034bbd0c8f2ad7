"""The rules of diagnosis: from a run's accounting to findings, layer by layer.

Each layer's module has functions from a Run to findings. Thresholds are shares of the step,
moderate and high. Where a treatment's gain depends on more than the trace shows, `ms_per_step` is
an estimate, and the evidence says so.
"""

from headrace.diagnosis import FIRM_STEPS, LEAST_STEPS, Finding, Run
from headrace.rules import communication, data, kernel, memory
from headrace.rules.common import to_device
from headrace.skew import Split, split_communication

__all__ = ["cannot_tell", "close", "findings_of"]


def findings_of(run: Run) -> list[Finding]:
    """All findings, the most to win first, causes before their effects where they are close.

    One or more; a single one of layer "unknown" when nothing can be told.
    """
    if (reason := _cannot_tell(run)) is not None:
        return [reason]
    split = split_communication(run.ranks)
    found = data.loader_findings(run) if run.trains_on_cpu else _all_layers(run, split)
    found += data.counter_findings(run)
    named = [finding for finding in found if finding.layer != "unknown"]
    named.sort(key=lambda finding: -finding.ms_per_step)
    _causes_first(named)
    if min(len(rank.steps) for rank in run.ranks) < LEAST_STEPS and run.has_steps:
        # Too few steps for what is said of each rank; what tells the ranks apart has more.
        named.sort(key=lambda finding: finding.kind != "skew")
    named += [finding for finding in found if finding.layer == "unknown"]
    return named or [_nothing(run)]


def close(a: Finding, b: Finding) -> bool:
    """Whether two findings are within a fifth of each other, so that both must be named."""
    return min(a.ms_per_step, b.ms_per_step) >= 0.8 * max(a.ms_per_step, b.ms_per_step)


def cannot_tell(run: Run) -> list[str]:
    """What this input doesn't show, and how it would."""
    notes: list[str] = []
    sidecars = all(trace.sidecar for trace in run.traces)
    if not run.has_steps:
        notes.append(
            "no ProfilerStep: the whole recorded time was taken as one, warm-up included. "
            "Call profiler.step() after each training step"
        )
    elif run.verdict != "firm":
        fewest = min(len(rank.steps) for rank in run.ranks)
        notes.append(
            f"{fewest} complete step{'s'[: fewest > 1]} of a rank say little: record "
            f"{FIRM_STEPS} or more (schedule(active=...))"
        )
    if run.has_gpu_events and not run.loader_name:
        notes.append(
            "no DataLoader in the trace: waiting for data, if any, is under 'host at work'. "
            "Iterate over the loader within the profiled loop"
        )
    if run.has_gpu_events and any(to_device(run, "unknown", exposed) for exposed in (False, True)):
        notes.append(
            "copies to the device don't say (ROCm) whether they came from pageable or "
            "pinned memory: their share is unknown, not zero"
        )
    if run.has_gpu_events and not any(trace.summary["memory"] for trace in run.traces):
        notes.append("memory: no [memory] events. Profile with profile_memory=True")
    if run.has_gpu_events and not _has_retries(run):
        notes.append(
            "allocation retries: not in a trace; headrace.profile() records them beside it"
        )
    unlinked = run.total("unlinked_device_events")
    if unlinked:
        notes.append(
            f"{unlinked:,} device events have no call that launched them: the ends of "
            "steps may be early"
        )
    size = run.world_size
    if size is not None and size > len(run.ranks):
        notes.append(f"{len(run.ranks)} of {size} ranks given: a slow rank may be among the others")
    notes += [
        f"{trace.path}: {trace.summary['control_characters']} control characters within strings, "
        f"the first at byte {trace.summary['first_control_character']}: read as spaces"
        for trace in run.traces
        if trace.summary["control_characters"]
    ]
    if not sidecars and run.has_gpu_events:
        notes.append(
            "batch size, dtype and versions: not in a trace; headrace.profile() records "
            "them beside it"
        )
    return notes


# --- when nothing can be told ---------------------------------------------------------------------


def _cannot_tell(run: Run) -> Finding | None:
    if not run.has_gpu_events and not run.trains_on_cpu:
        return _unknown(
            "no-gpu-events",
            "cannot tell: a GPU was there, but the trace has no GPU events",
            "Record ProfilerActivity.CUDA too; if it was, look whether another profiler held CUPTI",
        )
    if run.verdict == "none" and not run.has_gpu_events:
        return _unknown(
            "no-gpu-events",
            f"cannot tell: no GPU events, and {run.step_count} step(s)",
            f"Record ProfilerActivity.CUDA too if this trains on a GPU, and {FIRM_STEPS} steps",
        )
    if run.verdict == "none":
        return _unknown(
            "too-few-steps",
            f"cannot tell: {run.step_count} complete step(s), and {LEAST_STEPS} are the least",
            f"Record {FIRM_STEPS} steps or more: schedule(wait=1, warmup=2, active={FIRM_STEPS})",
        )
    if run.trains_on_cpu and not run.loader_name:
        return _unknown(
            "no-gpu-events",
            "cannot tell: no GPU events, and no data loader either",
            "Record ProfilerActivity.CUDA if this trains on a GPU; iterate over a DataLoader "
            "within the profiled loop",
        )
    return None


def _unknown(kind: str, title: str, *treatment: str) -> Finding:
    return Finding("unknown", kind, "none", title, treatment=list(treatment))


def _nothing(run: Run) -> Finding:
    if run.trains_on_cpu:
        waits = 100 * run.share("loader")
        title = f"not the data: the loop waits in the loader for {waits:.1f} % of the step"
        return _unknown("balanced", title, "No GPU in this trace: nothing more can be told")
    evidence = [
        f"{run.kind_names().get(k, k)} {100 * run.share(k):.1f} %"
        for k in ("compute", "loader", "communication", "host")
        if run.share(k) >= 0.001
    ]
    return Finding(
        "unknown",
        "balanced",
        "none",
        "no layer stands out",
        0.0,
        evidence,
        ["Look at the accounting: no single treatment is worth much"],
    )


def _all_layers(run: Run, split: Split | None) -> list[Finding]:
    return [
        *data.loader_findings(run),
        *data.copy_findings(run),
        *communication.communication_findings(run, split),
        *kernel.compute_findings(run),
        *kernel.host_findings(run),
        *memory.limit_findings(run),
        *memory.allocation_findings(run),
    ]


def _causes_first(found: list[Finding]) -> None:
    """A rank that is late for its data, or for launching, shows as the others' communication."""
    for i in range(len(found) - 1):
        if (
            found[i].kind == "skew"
            and found[i + 1].layer == "data"
            and close(found[i], found[i + 1])
        ):
            found[i], found[i + 1] = found[i + 1], found[i]


def _has_retries(run: Run) -> bool:
    return any("alloc_retries" in trace.sidecar.get("memory", {}) for trace in run.traces)
