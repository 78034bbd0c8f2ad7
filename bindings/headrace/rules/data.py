"""Data: waiting for the loader, and copies to the device that are not hidden."""

from headrace.diagnosis import Finding, Rank, Run
from headrace.rules.common import level_of, to_device

DATA = (0.05, 0.20)
COPIES = (0.03, 0.10)
COUNTERS_DIFFER = 0.05


def loader_findings(run: Run) -> list[Finding]:
    """Time waiting for the loader, on the rank that waits most."""

    def share_of(rank: Rank) -> float:
        return rank.kind_ms("loader") / rank.step_ms if rank.step_ms else 0.0

    worst = max(run.ranks, key=share_of)
    level = level_of(share_of(worst), DATA)
    if level is None:
        return []
    ms = worst.kind_ms("loader")
    who = "" if len(run.ranks) == 1 else f" on {worst}"
    waited = "the GPU idles" if run.has_gpu_events else "the loop waits"
    title = (
        f"{waited} while the loader is waited for{who}: {100 * share_of(worst):.1f} % of the step"
    )
    evidence = [f"{ms:.1f} of {worst.step_ms:.1f} ms a step", *_longest_waits(worst)]
    if run.loader_name:
        evidence.append(f"the loader's iterator: {run.loader_name}")
    if len(run.ranks) > 1:
        shares = ", ".join(f"{rank.number}: {100 * share_of(rank):.1f}" for rank in run.ranks)
        evidence.append(f"percent by rank: {shares}")
    evidence += _copy_evidence(run)
    if not run.has_gpu_events:
        evidence.append(
            "no GPU in this trace: this is the loop's time in next(), and the most "
            "that another loader can win"
        )
    return [
        Finding("data", "loader", level, title, ms, evidence, _loader_treatment(run, worst, ms))
    ]


def _longest_waits(rank: Rank) -> list[str]:
    waits = [
        (end - begin, trace, begin)
        for trace in rank.traces
        for begin, end in trace.summary["loader_waits_ns"]
    ]
    if not waits:
        return []
    length, trace, begin = max(waits, key=lambda wait: wait[0])
    return [
        f"{len(waits)} wait{'s'[: len(waits) > 1]}, the longest {length / 1e6:.1f} ms, "
        + trace.at_ms(begin)
    ]


def _loader_treatment(run: Run, worst: Rank, ms: float) -> list[str]:
    gain = f"up to {ms:.1f} ms of {worst.step_ms:.1f} ms a step"
    if "WorkerIterator" in run.loader_name or "MainProcessIterator" in run.loader_name:
        report = _loader_report(worst)
        return [
            *([report] if report else []),
            "reading stalls: a higher read_budget_bytes, files in the page cache, fewer and larger "
            "files",
            "decoding stalls: more threads=, smaller images on disk",
            f"loader.report() names the stage ({gain})",
        ]
    first = "num_workers: "
    if "SingleProcess" in run.loader_name:
        first += "it is 0, so that loading and training take turns; set it to the number of cores"
    elif "MultiProcessing" in run.loader_name:
        first += "more, up to the number of cores"
    else:
        first += "the number of cores"
    return [
        f"torch's four settings. {first}",
        "pin_memory=True with .to(device, non_blocking=True); persistent_workers=True; "
        "prefetch_factor=4",
        f"headrace.DataLoader in the place of torch's: the same batches, {gain}",
        "smaller images on disk, or images decoded once and packed",
    ]


def counter_findings(run: Run) -> list[Finding]:
    """The loader's own counters, where they contradict the trace."""
    for rank in run.ranks:
        loaders = [trace.sidecar.get("loader") or {} for trace in rank.traces]
        wall = sum(loader.get("wall_ns", 0) for loader in loaders)
        if not wall:
            continue
        counted = sum(loader.get("consumer_wait_ns", 0) for loader in loaders) / wall
        traced = rank.mean_ms(lambda step: step.loader_wait_ns) / rank.step_ms
        if abs(counted - traced) > COUNTERS_DIFFER:
            return [
                Finding(
                    "unknown",
                    "counters-differ",
                    "none",
                    f"trace and the loader's counters differ on {rank}: {100 * traced:.1f} and "
                    f"{100 * counted:.1f} % of the time waiting for data",
                    treatment=["Profile longer, in mid-epoch: one of them saw steps like no other"],
                )
            ]
    return []


def _loader_report(rank: Rank) -> str:
    return str(rank.traces[-1].sidecar.get("loader_report") or "")


def _copy_evidence(run: Run) -> list[str]:
    times = {memory: to_device(run, memory, False) for memory in ("pageable", "pinned", "unknown")}
    total = sum(times.values())
    if not total:
        return []
    parts = ", ".join(f"{100 * ms / total:.0f} % {memory}" for memory, ms in times.items() if ms)
    return [f"host-to-device copies: {total:.2f} ms a step, {parts}"]


def copy_findings(run: Run) -> list[Finding]:
    """Host-to-device copies that are not hidden."""
    exposed = {m: to_device(run, m, True) for m in ("pageable", "pinned", "unknown")}
    ms = sum(exposed.values())
    level = level_of(ms / run.step_ms, COPIES)
    if level is None or exposed["pageable"] < ms / 2:
        if level is None or exposed["unknown"] < ms / 2:
            return []
        return [
            Finding(
                "data",
                "copies",
                level,
                f"copies to the device, not hidden: {100 * ms / run.step_ms:.1f} % of the step",
                ms,
                [*_copy_evidence(run), "from pageable or pinned memory: not recorded"],
                ["Make sure of pin_memory=True and .to(device, non_blocking=True)"],
            )
        ]
    return [
        Finding(
            "data",
            "pageable-copies",
            level,
            f"copies from pageable memory, not hidden: {100 * ms / run.step_ms:.1f} % of the step",
            ms,
            _copy_evidence(run),
            [
                "pin_memory=True in the DataLoader, and .to(device, non_blocking=True)",
                "copy the next batch on a stream of its own, while this one is computed",
            ],
        )
    ]
