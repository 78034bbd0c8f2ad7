"""Two runs side by side: may they be compared, is one faster, and for the stated reason?"""

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.diagnosis import LEAST_STEPS, Finding, Run
from headrace.rules import findings_of
from headrace.trace import KINDS, Step, Trace

VERIFIED = "VERIFIED"
OTHER_REASON = "faster, but not for the stated reason"
NO_CHANGE = "no change that counts"
SLOWER = "slower"
CANNOT_TELL = "cannot tell"

LEAST_CHANGE = 0.03
# Of the gain, so much at least must come from the treated part.
STATED_SHARE = 0.5
SIDE_EFFECT = 0.01  # of the step before
CONFIDENCE = 0.95
_RESAMPLES = 2000

_TREATED_KIND = {
    ("data", "loader"): "loader",
    ("data", "pageable-copies"): "copy",
    ("data", "copies"): "copy",
    ("kernel", "sync-bound"): "host",
    ("kernel", "launch-bound"): "host",
    ("unknown", "host"): "host",
    ("kernel", "one-operator"): "compute",
    ("kernel", "broad"): "compute",
    ("memory", "allocation"): "allocation",
    ("memory", "near-limit"): "allocation",
}


@dataclass(frozen=True)
class Comparison:
    """What changed from one run to another; times in milliseconds per step.

    Attributes:
        verdict: one of the constants above.
        change: of the median step, 0.2 for a fifth faster; `interval`: its confidence interval.
        mean_change: the same of the mean step.
        treated: the kind of time that the treatment was for; None if nothing was to be treated.
        to_win, won: what the treated part took before, and how much shorter the step is now.
        treated_fall: how much less the treated part takes now.
        side_effects: kinds that take more now: name -> (before, after).
        scale: the second run's times were multiplied by it (unequal batches).
    """

    verdict: str
    reason: str
    before: dict[str, float]
    after: dict[str, float]
    change: float
    interval: tuple[float, float]
    mean_change: float
    treated: str | None
    to_win: float
    won: float
    treated_fall: float
    side_effects: dict[str, tuple[float, float]]
    bottleneck: Finding
    notes: list[str] = field(default_factory=list)
    scale: float = 1.0


# --- may they be compared? ------------------------------------------------------------------------


def differences(before: Run, after: Run) -> tuple[list[str], list[str]]:
    """What forbids a comparison, and what is not known of one run at least."""
    found, unknown = [], []
    for name, read in _PROPERTIES.items():
        values = [_of(run, read) for run in (before, after)]
        if None in values:
            unknown.append(name)
        elif values[0] != values[1]:
            found.append(f"{name}: {values[0]} before, {values[1]} after")
    return found, unknown


def _of(run: Run, read: Callable[[Trace], Any]) -> Any:
    values = {read(trace) for trace in run.traces} - {None}
    if not values:
        return None
    return ", ".join(sorted(map(str, values)))


def _flags(trace: Trace) -> str:
    if "profiler" in trace.sidecar:
        on = [name for name, value in trace.sidecar["profiler"].items() if value is True]
    else:
        names = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
        on = [name for name in names if trace.metadata.get(name)]
    return " ".join(sorted(on)) or "none"


def _sidecar(name: str) -> Callable[[Trace], Any]:
    return lambda trace: trace.sidecar.get(name)


_PROPERTIES: dict[str, Callable[[Trace], Any]] = {
    "GPU": lambda trace: trace.device.get("name") or trace.sidecar.get("gpu"),
    "world size": lambda trace: trace.world_size,
    "batch size": _sidecar("batch_size"),
    "dtype": _sidecar("dtype"),
    "torch": _sidecar("torch"),
    "profiler flags": _flags,
}


# --- what changed? --------------------------------------------------------------------------------


def compare(before: Run, after: Run, treated: str | None = None) -> Comparison:
    """Judges a treatment.

    Args:
        treated: one of KINDS, the part of the step that was treated; None: what the first finding
            about `before` is about.
    """
    notes: list[str] = []
    scale = _scale(before, after, notes)
    first = findings_of(before)[0]
    if treated is None:
        treated = _TREATED_KIND.get((first.layer, first.kind))
        if first.layer == "communication":
            treated = "communication"
    spans = _spans(before), _spans(after)
    if min(map(len, spans)) == 1:
        notes.append(
            "one profiled span on a side: its steps are not independent of each other, "
            "and the interval may be too narrow. profile(repeat=3) records several"
        )

    def interval(value: Callable[[Step], int], average: Callable[[Sequence[float]], float]) -> Any:
        return _interval(spans[0], spans[1], value, average, scale)

    change = 1 - scale * after.median_step_ms / before.median_step_ms
    low, high = interval(lambda step: step.duration_ns, statistics.median)
    kinds = _kinds(before, 1), _kinds(after, scale)
    won = before.step_ms - scale * after.step_ms
    to_win = kinds[0][treated] if treated else 0.0
    fall = to_win - kinds[1][treated] if treated else 0.0
    # Clearly: not by chance.
    fell = treated is not None and (
        _interval(
            spans[0],
            spans[1],
            lambda s: s.time_ns[str(treated)],
            statistics.fmean,
            scale,
            relative=False,
        )[0]
        > 0
    )
    verdict, reason = _verdict(before, after, change, (low, high), treated, fell, fall, won)
    return Comparison(
        verdict=verdict,
        reason=reason,
        before={"step": before.step_ms, "median step": before.median_step_ms, **kinds[0]},
        after={
            "step": scale * after.step_ms,
            "median step": scale * after.median_step_ms,
            **kinds[1],
        },
        change=change,
        interval=(low, high),
        mean_change=won / before.step_ms,
        treated=treated,
        to_win=to_win,
        won=won,
        treated_fall=fall,
        side_effects={
            kind: (kinds[0][kind], kinds[1][kind])
            for kind in KINDS
            if kinds[1][kind] - kinds[0][kind] > SIDE_EFFECT * before.step_ms
        },
        bottleneck=findings_of(after)[0],
        notes=notes,
        scale=scale,
    )


def _verdict(
    before: Run,
    after: Run,
    change: float,
    interval: tuple[float, float],
    treated: str | None,
    fell: bool,
    fall: float,
    won: float,
) -> tuple[str, str]:
    low, high = interval
    fewest = min(before.step_count, after.step_count)
    if fewest < LEAST_STEPS or not (before.has_steps and after.has_steps):
        return CANNOT_TELL, f"each side needs {LEAST_STEPS} steps at least; there are {fewest}"
    if high < 0 and change <= -LEAST_CHANGE:
        return SLOWER, f"the median step takes {-100 * change:.1f} % more"
    if low <= 0:
        return NO_CHANGE, "the interval of the change includes 0"
    if change < LEAST_CHANGE:
        return NO_CHANGE, f"{100 * change:.1f} % is less than {100 * LEAST_CHANGE:.0f} %"
    if treated is None:
        return OTHER_REASON, "the run before showed nothing to treat; name it with --treated"
    if not fell:
        return OTHER_REASON, f"the treated part ({treated}) didn't fall"
    if fall < STATED_SHARE * won:
        return OTHER_REASON, (
            f"the treated part ({treated}) fell by {fall:.1f} ms, less than half of the "
            f"{won:.1f} ms won"
        )
    return VERIFIED, f"the step is shorter, and the treated part ({treated}) fell"


def _scale(before: Run, after: Run, notes: list[str]) -> float:
    """Steps of unequal batches are compared by the time for as many samples."""
    sizes = [_of(run, _sidecar("batch_size")) for run in (before, after)]
    if None in sizes or sizes[0] == sizes[1] or not all(size.isdigit() for size in sizes):
        return 1.0
    notes.append(
        f"batches of {sizes[0]} and {sizes[1]}: the second run's times are for {sizes[0]} samples"
    )
    return int(sizes[0]) / int(sizes[1])


def _kinds(run: Run, scale: float) -> dict[str, float]:
    return {kind: scale * run.kind_ms(kind) for kind in KINDS}


def _spans(run: Run) -> list[list[Step]]:
    """Steps that were recorded in one go, on whichever rank: they are alike for other reasons than
    what is compared, so they are drawn together."""
    count = max(len(rank.traces) for rank in run.ranks)
    return [
        [step for rank in run.ranks for trace in rank.traces[i : i + 1] for step in trace.steps]
        for i in range(count)
    ]


def _interval(
    before: list[list[Step]],
    after: list[list[Step]],
    value: Callable[[Step], int],
    average: Callable[[Sequence[float]], float],
    scale: float,
    relative: bool = True,
) -> tuple[float, float]:
    """Percentile bootstrap of the fall: spans are drawn, then steps within them."""
    generator = random.Random(0)  # the same input gives the same verdict
    sides = [[[value(step) for step in span] for span in side] for side in (before, after)]

    def draw(spans: list[list[int]]) -> float:
        drawn = spans if len(spans) == 1 else generator.choices(spans, k=len(spans))
        return average([x for span in drawn for x in generator.choices(span, k=len(span))])

    falls = []
    for _ in range(_RESAMPLES):
        old, new = draw(sides[0]), scale * draw(sides[1])
        falls.append((old - new) / old if relative else old - new)
    falls.sort()
    tail = round((1 - CONFIDENCE) / 2 * _RESAMPLES)
    return falls[tail], falls[-1 - tail]
