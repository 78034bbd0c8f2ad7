"""Splits communication between ranks into transfer and waiting for a late rank."""

from collections import defaultdict
from dataclasses import dataclass

from headrace.diagnosis import Rank


@dataclass(frozen=True)
class Split:
    """Milliseconds per step of communication kernels, by rank.

    A collective ends on all ranks together, and who comes last waits least: so the least duration
    over the ranks is the transfer, and what is more than that on a rank is waiting.
    """

    transfer_ms: float
    total_ms: dict[int | None, float]
    matched: int  # collectives

    @property
    def waiting_share(self) -> dict[int | None, float]:
        """Of each rank's communication the part that is waiting, 0 to 1."""
        return {
            rank: max(0.0, 1 - self.transfer_ms / total) if total else 0.0
            for rank, total in self.total_ms.items()
        }

    @property
    def mean_waiting_share(self) -> float:
        """The same of all ranks' communication."""
        total = sum(self.total_ms.values())
        return max(0.0, 1 - self.transfer_ms * len(self.total_ms) / total) if total else 0.0

    @property
    def late_rank(self) -> int | None:
        """The one that the others wait for: it has the least communication time."""
        return min(self.total_ms, key=lambda rank: self.total_ms[rank])


def split_communication(ranks: list[Rank]) -> Split | None:
    """Matches the collectives of several ranks by their order; None without any."""
    if len(ranks) < 2:
        return None
    durations = [_durations(rank) for rank in ranks]
    common = set(durations[0]).intersection(*durations[1:])
    transfer_ns = matched = 0
    total_ns = [0] * len(ranks)
    for key in common:
        for calls in zip(*(found[key] for found in durations), strict=False):
            matched += 1
            transfer_ns += min(calls)
            total_ns = [total + call for total, call in zip(total_ns, calls, strict=True)]
    if not matched:
        return None
    steps = min(len(rank.steps) for rank in ranks)
    totals = {rank.number: total / 1e6 / steps for rank, total in zip(ranks, total_ns, strict=True)}
    return Split(transfer_ns / 1e6 / steps, totals, matched)


def _durations(rank: Rank) -> dict[tuple[str, str, str], list[int]]:
    """By step, group and kind of collective: the n-th is the same one on each rank."""
    found: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for trace in rank.traces:
        for collective in trace.summary["collectives"]:
            begin, end = collective["span_ns"]
            step = trace.steps[collective["step"]].name
            # Algorithm and protocol follow in the name, and may differ from rank to rank.
            name = collective["name"].partition("(")[0]
            kind = "_".join(name.split("_")[:2])
            found[step, collective["group"], kind].append(end - begin)
    return found
