"""The loader's own counters in words: which stage limits, and what would help."""

import math
from typing import Any

# Waiting for less of the time than this is not worth a treatment.
_LITTLE_WAIT = 0.02
# Threads that are busy for more of the time than this have no room left.
_BUSY = 0.85
# Of the reader's time, held back by the budget.
_HELD_BACK = 0.3
# Samples that torch and Pillow compute on the training's thread.
_MANY_QUESTIONS = 0.05


def in_words(stats: dict[str, Any], cores: int) -> str:
    """One or two sentences about an iteration.

    Args:
        stats: what DataLoader.stats() returns.
        cores: how many this process may use.
    """
    if not stats:
        return "no native iteration yet: iterate first; loader.explain() says which path is taken"
    wall = stats["wall_ns"]
    if not stats["batches"] or not wall:
        return "no batch was handed out yet: iterate first"
    wait = stats["consumer_wait_ns"] / wall
    ready = stats["ready_batches_sum"] / stats["batches"]
    head = f"waiting for data {100 * wait:.0f} % of the time, {ready:.1f} batches ready on average"
    if wait < _LITTLE_WAIT:
        return f"not limiting: {head}"
    return f"{_limit(stats, wall, cores)} ({head})"


def _limit(stats: dict[str, Any], wall: int, cores: int) -> str:
    stages, threads = stats["stages"], stats["threads"]
    work = {name: stages[name]["busy_ns"] for name in ("decode", "transform")}
    busy = sum(work.values()) / (threads * wall)
    if busy >= _BUSY:
        stage = max(work, key=lambda name: work[name])
        return (
            f"{stage}-bound: {_threads(threads)} busy {100 * busy:.0f} %; "
            f"{_more_threads(stats, sum(work.values()), wall, cores)}"
        )
    samples = stages["decode"]["items"] + stats["questions"]
    asked = stats["questions"] / samples if samples else 0.0
    if asked >= _MANY_QUESTIONS:
        return (
            f"Pillow-bound: {100 * asked:.0f} % of the samples are computed by torch and Pillow on "
            "the training's thread; convert those files to sound JPEG or PNG"
        )
    read = stages["read"]
    io_threads = 1 if stats["reader"] == "io_uring" else stats["io_threads"]
    reading = read["busy_ns"] / (io_threads * wall)
    if read["waiting_ns"] >= _HELD_BACK * wall and reading < _BUSY:
        return (
            "read-bound: held back by read_budget_bytes "
            f"{100 * min(1.0, read['waiting_ns'] / wall):.0f} % of the time; raise it"
        )
    if reading >= 0.5:
        return (
            f"read-bound: files are being read {100 * min(1.0, reading):.0f} % of the time while "
            f"{_threads(threads)} are busy {100 * busy:.0f} %; put the files on a faster disk or "
            "into the page cache, or pack them into fewer"
        )
    return (
        f"too little ahead: {_threads(threads)} are busy {100 * busy:.0f} % only; raise "
        "prefetch_factor or num_workers, so that more batches are in flight; if that doesn't help, "
        "the disk answers late: put the files into the page cache, or pack them into fewer"
    )


def _more_threads(stats: dict[str, Any], work_ns: int, wall_ns: int, cores: int) -> str:
    threads = stats["threads"]
    # What the consumer takes without any wait is the time in which the work must be done.
    own_ns = wall_ns - stats["consumer_wait_ns"]
    wanted = math.ceil(work_ns / own_ns) if own_ns > 0 else cores + 1
    more = max(1, wanted - threads)
    if threads + more <= cores:
        return f"{more} more would remove the wait"
    if threads < cores:
        return f"{cores - threads} more (threads=) would shorten the wait, as all {cores} cores do"
    return (
        f"{more} more would remove the wait, but all {cores} cores are in use: smaller images on "
        "disk, or more cores"
    )


def _threads(count: int) -> str:
    return f"{count} thread{'s'[: count > 1]}"
