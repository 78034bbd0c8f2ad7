"""Communication: transfer against waiting for a late rank."""

from headrace.diagnosis import Finding, Run
from headrace.rules.common import level_of, top_kernels
from headrace.skew import Split

COMMUNICATION = (0.10, 0.20)
SMALL_MESSAGE, DDP_BUCKET = 4 << 20, 25 << 20  # bytes


def communication_findings(run: Run, split: Split | None) -> list[Finding]:
    """Communication that is not hidden; several ranks tell transfer from waiting."""
    exposed, total = (
        run.kind_ms("communication"),
        run.mean(lambda rank: rank.mean_ms(lambda step: step.communication_ns)),
    )
    share = exposed / run.step_ms
    level = level_of(share, COMMUNICATION)
    if level is None:
        return []
    hidden = 1 - exposed / total
    evidence = [
        f"exposed {100 * share:.1f} % of the step; in all {100 * total / run.step_ms:.1f} %, of "
        f"which {100 * hidden:.0f} % is hidden by compute",
        *top_kernels(run, lambda kernel: bool(kernel["communication"]), 2),
    ]
    if split is None:
        return [
            Finding(
                "communication",
                "undivided",
                level,
                f"communication or a slow rank, cannot tell which: {100 * share:.1f} % exposed",
                exposed,
                [*evidence, "one rank only: transfer and waiting look alike"],
                [
                    "Give the traces of all ranks: they tell transfer from waiting for a late rank",
                    *_transfer_treatment(run, hidden),
                ],
            )
        ]
    return _by_rank(run, split, level, exposed, hidden, evidence)


def _by_rank(
    run: Run, split: Split, level: str, exposed: float, hidden: float, evidence: list[str]
) -> list[Finding]:
    waiting = split.mean_waiting_share
    shares = split.waiting_share.values()
    late = split.late_rank
    totals = ", ".join(f"{rank}: {ms:.2f}" for rank, ms in split.total_ms.items())
    common = [
        *evidence,
        f"{100 * min(shares):.0f} to {100 * max(shares):.0f} % of each rank's communication is "
        f"waiting; the transfer alone is {split.transfer_ms:.2f} ms a step",
        f"ms a step by rank: {totals}",
    ]
    found = []
    if waiting >= 0.5:
        found.append(
            Finding(
                "communication",
                "skew",
                level,
                f"rank {late} is late, and the others wait for it: {100 * waiting:.0f} % of the "
                "communication is waiting",
                exposed * waiting,
                [*common, f"rank {late} has the least communication time", *_why_late(run, late)],
                [
                    f"Look at rank {late}: its loader, its share of the work, its machine",
                    "Don't tune NCCL for this: the transfer itself is short",
                ],
            )
        )
    transfer = exposed * (1 - waiting)
    transfer_level = level_of(transfer / run.step_ms, COMMUNICATION)
    if transfer_level is not None:
        found.append(
            Finding(
                "communication",
                "transfer",
                transfer_level,
                f"transfer, not hidden: {100 * transfer / run.step_ms:.1f} % of the step",
                transfer,
                common,
                _transfer_treatment(run, hidden),
            )
        )
    if not found:
        found.append(
            Finding(
                "communication",
                "mixed",
                level,
                f"communication, part transfer and part waiting for rank {late}",
                exposed,
                common,
                [f"Look at rank {late}", *_transfer_treatment(run, hidden)],
            )
        )
    return found


def _why_late(run: Run, late: int | None) -> list[str]:
    """What the late rank does more of than the others, besides communicating."""
    rank = next(rank for rank in run.ranks if rank.number == late)
    others = [other for other in run.ranks if other is not rank]
    more = {
        kind: rank.kind_ms(kind) - sum(other.kind_ms(kind) for other in others) / len(others)
        for kind in ("compute", "copy", "loader", "allocation", "host")
    }
    kind = max(more, key=lambda k: more[k])
    if more[kind] <= 0:
        return []
    return [
        f"on rank {late}: {more[kind]:.1f} ms a step more of '{run.kind_names()[kind]}' than on "
        "the others"
    ]


def _transfer_treatment(run: Run, hidden: float) -> list[str]:
    advice = []
    if hidden < 0.5:
        advice.append(
            "overlap: let gradients be reduced during backward (DDP does, unless "
            "no_sync or find_unused_parameters holds it up); for FSDP prefetch"
        )
    sizes = [
        collective["bytes"]
        for trace in run.traces
        for collective in trace.summary["collectives"]
        if "AllReduce" in collective["name"] and collective["bytes"] >= 0
    ]
    if sizes:
        mean = sum(sizes) / len(sizes)
        told = f"{len(sizes) / run.step_count:.0f} all-reduces a step of {mean / 2**20:.1f} MiB"
        if mean < SMALL_MESSAGE:
            advice.append(f"larger buckets (bucket_cap_mb): {told}")
        elif mean > 4 * DDP_BUCKET:
            advice.append(f"smaller buckets, so that the first can start earlier: {told}")
        else:
            advice.append(f"bucket size: {told} are of a good size")
    else:
        advice.append(
            "bucket size (bucket_cap_mb): this trace has no message sizes; try 50 and 100"
        )
    advice.append("less to send: bf16 gradients (a communication hook), gradient accumulation")
    advice.append("topology: check that NCCL uses NVLink and InfiniBand (NCCL_DEBUG=INFO)")
    return advice
