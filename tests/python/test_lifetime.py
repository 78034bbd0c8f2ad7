"""Nothing hangs, crashes or outlives its user: interruptions, references, threads."""

import gc
import os
import signal
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace import Error
from isolated import Isolator
from lifetime import (
    COUNT,
    WORKERS,
    eventually,
    io_threads,
    labels,
    make_loader,
    make_pictures,
    run_side_by_side,
    same_batches,
    started,
    threads,
)

pytestmark = pytest.mark.parametrize("workers", WORKERS)

# --- interruptions --------------------------------------------------------------------------------


def interrupt_waiting(folder: str, workers: int) -> None:
    """Ctrl-C while the first picture is being decoded."""
    iterator = iter(make_loader(folder, workers, batch_size=1, threads=1))
    caught_at = 0.0
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    sent_at = time.monotonic() + 0.02
    try:
        next(iterator)
    except KeyboardInterrupt:
        caught_at = time.monotonic()
    assert 0 < caught_at < sent_at + 2, "Ctrl-C did not come through"
    assert iterator.stats()["batches"] == 0, "the test's pictures are too small"
    assert labels(iterator) == [0, 1, 2, 3]


def test_ctrl_c_comes_through_while_next_waits(
    isolated: Isolator, large_pictures: Path, workers: int
) -> None:
    isolated(interrupt_waiting, large_pictures, workers)


def interrupt_step(folder: str, workers: int) -> None:
    iterator = iter(make_loader(folder, workers))
    seen = []
    while len(seen) < COUNT:
        try:
            for batch in iterator:
                seen += labels([batch])
                signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            continue
    assert seen == list(range(COUNT))
    assert next(iterator, None) is None


def test_iteration_goes_on_after_ctrl_c_in_the_training_step(
    isolated: Isolator, numbered_pictures: Path, workers: int
) -> None:
    isolated(interrupt_step, numbered_pictures, workers)


def interrupt_pillow(folder: str, workers: int) -> None:
    """Pillow waits for a FIFO's writer, for ever; later the file is a picture."""
    fifo = Path(folder, "0005", "x.jpg")
    picture = fifo.with_suffix(".saved")
    fifo.rename(picture)
    os.mkfifo(fifo)
    torch.manual_seed(1)
    iterator = iter(make_loader(folder, workers))
    state = torch.get_rng_state()
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    seen: list[Any] = []
    try:
        seen.extend(iterator)
    except KeyboardInterrupt:
        if workers > 0:
            assert torch.equal(torch.get_rng_state(), state), "the caller's generator was left off"
        picture.rename(fifo)
        seen.extend(iterator)
    assert picture.exists() is False, "Ctrl-C did not come through"
    assert labels(seen) == list(range(COUNT))
    torch.manual_seed(1)
    assert same_batches(seen, list(make_loader(folder, workers)))


def test_iteration_goes_on_after_ctrl_c_in_pillow(
    isolated: Isolator, tmp_path: Path, workers: int
) -> None:
    isolated(interrupt_pillow, make_pictures(tmp_path), workers)


def interrupt_often(folder: str, workers: int) -> None:
    """Ctrl-C every few milliseconds; next() is the only place that lets it in."""
    torch.manual_seed(1)
    expected = list(make_loader(folder, workers))
    torch.manual_seed(1)
    iterator = iter(make_loader(folder, workers))
    interruptions = 0

    def handler(_signal: int, frame: Any) -> None:
        if is_inside(frame, "_wait"):
            raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    seen: list[Any] = []
    while len(seen) < len(expected):
        try:
            seen.append(next(iterator))
        except KeyboardInterrupt:
            interruptions += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert next(iterator, None) is None
    assert interruptions > 0
    assert same_batches(seen, expected)


def test_no_batch_is_lost_or_repeated_however_often_a_wait_is_interrupted(
    isolated: Isolator, large_pictures: Path, workers: int
) -> None:
    isolated(interrupt_often, large_pictures, workers)


def interrupt_everywhere(folder: str, workers: int) -> None:
    """Ctrl-C at each call and return of the Python code in turn: where Python looks for signals."""
    outcomes = {"complete": 0, "said": 0, "swallowed": 0}
    loader = make_loader(folder, workers, threads=1)
    for moment in range(1, 100_000, 1 if workers else 3):
        left = moment

        def profile(frame: Any, event: str, _argument: Any) -> None:
            nonlocal left
            if event in ("call", "c_return") and is_inside(frame, "__next__"):
                left -= 1
                if left == 0:
                    raise KeyboardInterrupt

        iterator = iter(loader)
        seen: list[int] = []
        interrupted = False
        try:
            sys.setprofile(profile)
            try:
                for _ in range(2):
                    seen += labels([next(iterator)])
            except KeyboardInterrupt:
                interrupted = True
            finally:
                sys.setprofile(None)
            if left > 0:
                break
            seen += labels(iterator)
        except RuntimeError as error:
            assert "was interrupted" in str(error), error
            outcomes["said"] += 1
        else:
            assert seen == list(range(COUNT)), moment
            # Python itself swallows what is raised where a generator is finalized.
            outcomes["complete" if interrupted else "swallowed"] += 1
    assert outcomes["complete"] > 0 and outcomes["swallowed"] < 10, outcomes
    print(outcomes)


def is_inside(frame: Any, function: str) -> bool:
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


def test_ctrl_c_at_any_moment_neither_hangs_nor_loses_samples_silently(
    isolated: Isolator, numbered_pictures: Path, workers: int
) -> None:
    isolated(interrupt_everywhere, numbered_pictures, workers)


def handle_signals(folder: str, workers: int) -> None:
    """Handlers run on the main thread, while next() waits."""
    heard: list[tuple[int, bool]] = []
    main = threading.main_thread()
    iterator = iter(make_loader(folder, workers, batch_size=4, threads=1))
    for number in (signal.SIGALRM, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, lambda n, _: heard.append((n, threading.current_thread() is main)))
    pid = os.getpid()
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    threading.Timer(0.02, lambda: os.kill(pid, signal.SIGUSR1)).start()
    child = os.fork()
    if child == 0:
        os._exit(0)
    next(iterator)
    assert iterator.stats()["batches"] == 1
    os.waitpid(child, 0)
    assert eventually(lambda: len(heard) == 3), heard
    assert all(on_main for _, on_main in heard)


def test_handlers_run_while_next_waits(
    isolated: Isolator, large_pictures: Path, workers: int
) -> None:
    isolated(handle_signals, large_pictures, workers)


def interrupt_through_threads(folder: str, workers: int) -> None:
    """No thread of headrace's takes signals: sleep() on the main thread would go on."""
    iterator = started(make_loader(folder, workers))
    for task in os.listdir("/proc/self/task"):
        status = Path(f"/proc/self/task/{task}/status").read_text()
        if "hr-" in status.splitlines()[0]:
            blocked = next(line for line in status.splitlines() if line.startswith("SigBlk"))
            mask = int(blocked.split()[1], 16)
            assert mask >> (signal.SIGINT - 1) & 1, f"{status.splitlines()[0]} takes SIGINT"
    del iterator


def test_no_thread_of_the_loader_takes_signals(
    isolated: Isolator, numbered_pictures: Path, workers: int
) -> None:
    isolated(interrupt_through_threads, numbered_pictures, workers)


# --- references -----------------------------------------------------------------------------------


def drop_without_garbage_collector(folder: str, workers: int) -> None:
    """Reference counts alone end the threads, at whatever stage the iterator is dropped.

    One case is left to the garbage collector: without workers, an exception that was met while
    looking ahead has the frames of next() in its traceback.
    """
    Path(folder, "0000", "x.jpg").write_bytes(b"no picture")
    gc.collect()
    gc.disable()

    def unstarted(loader: Any) -> Any:
        return iter(loader)

    def mid_epoch(loader: Any) -> Any:
        iterator = error_raised(loader)
        next(iterator)
        return iterator

    def exhausted(loader: Any) -> Any:
        iterator = iter(loader)
        while True:
            try:
                next(iterator)
            except StopIteration:
                return iterator
            except Exception:
                continue

    def error_raised(loader: Any) -> Any:
        iterator = iter(loader)
        try:
            next(iterator)
        except Exception:
            return iterator
        raise AssertionError("it should have failed")

    for stage in (unstarted, mid_epoch, exhausted, error_raised):
        for loader_first in (True, False):
            for options in ({}, {"persistent_workers": True}) if workers else ({},):
                loader: Any = make_loader(folder, workers, **options)
                iterator = stage(loader)
                seen = [weakref.ref(loader), weakref.ref(iterator)]
                if loader_first:
                    del loader, iterator
                else:
                    del iterator, loader
                where = f"{stage.__name__} {options}"
                assert [ref() for ref in seen] == [None, None], where
                assert eventually(lambda: not io_threads()), where


def test_a_dropped_iterator_ends_its_threads_without_the_garbage_collector(
    isolated: Isolator, tmp_path: Path, workers: int
) -> None:
    isolated(drop_without_garbage_collector, make_pictures(tmp_path), workers)


def drop_batches(folder: str, workers: int) -> None:
    gc.disable()
    loader = make_loader(folder, workers)
    batches = list(loader)
    kept = [images.clone() for images, _ in batches]
    pool = loader._buffer_pool()
    del loader
    live = pool.stats()["live_blocks"]
    assert live == 2 * len(batches), live
    assert all(torch.equal(a, b) for (a, _), b in zip(batches, kept, strict=True))
    references = [weakref.ref(tensor) for batch in batches for tensor in batch]
    del batches
    assert not any(reference() for reference in references)
    assert pool.stats()["live_blocks"] == 0


def test_batches_belong_to_their_holder_and_are_freed_with_the_last_reference(
    isolated: Isolator, numbered_pictures: Path, workers: int
) -> None:
    isolated(drop_batches, numbered_pictures, workers)


def drop_garbage(folder: str, workers: int) -> None:
    Path(folder, "0009", "x.jpg").write_bytes(b"no picture")
    for _ in range(20):
        cycle = [started(make_loader(folder, workers))]  # an error is on its way in some
        cycle.append(cycle)
        del cycle
        gc.collect()
    assert eventually(lambda: not io_threads())


def test_an_iterator_in_a_garbage_cycle_ends_its_threads(
    isolated: Isolator, tmp_path: Path, workers: int
) -> None:
    isolated(drop_garbage, make_pictures(tmp_path), workers)


def break_and_raise(folder: str, workers: int) -> None:
    loader = make_loader(folder, workers, persistent_workers=workers > 0)
    for _ in range(20):
        for _ in loader:
            break
        try:
            for _ in loader:
                raise ArithmeticError
        except ArithmeticError:
            pass
    assert labels(loader) == list(range(COUNT))


def test_a_loader_is_as_new_after_break_and_exceptions(
    isolated: Isolator, numbered_pictures: Path, workers: int
) -> None:
    isolated(break_and_raise, numbered_pictures, workers)


def consume(iterator: Any, entered: threading.Event, outcome: list[Any]) -> None:
    entered.set()
    try:
        outcome.extend(iterator)
    except Error as error:
        outcome.append(error)


def close_from_another_thread(folder: str, workers: int) -> None:
    """Dropped by another thread while one is inside next(): an error there, and no crash."""
    for _ in range(5):
        iterator = iter(make_loader(folder, workers, batch_size=1, threads=1))
        entered = threading.Event()
        outcome: list[Any] = []
        thread = threading.Thread(target=consume, args=(iterator, entered, outcome))
        thread.start()
        entered.wait()
        iterator.close()
        thread.join()
        assert isinstance(outcome[-1], Error) and outcome[-1].code == "stopped", outcome


def test_closing_wakes_a_thread_inside_next(
    isolated: Isolator, large_pictures: Path, workers: int
) -> None:
    isolated(close_from_another_thread, large_pictures, workers)


# --- threads --------------------------------------------------------------------------------------


def name_threads(folder: str, workers: int) -> None:
    assert threads() == ["python"] or len(threads()) == 1
    loader = make_loader(folder, workers, threads=2)
    iterator = iter(loader)
    next(iterator)
    # A thread has its creator's name until it gives itself its own.
    names = ["hr-io-0", "hr-io-1", "hr-io-2", "hr-io-3"]
    assert eventually(lambda: io_threads() == names)
    # oneTBB starts threads as there is work, and keeps them for the next loader.
    assert any(name in ("hr-cpu-0", "hr-cpu-1") for name in threads())
    del iterator
    assert eventually(lambda: not io_threads())
    assert len(threads()) <= 3


def test_threads_have_names_and_go_with_the_iterator(
    isolated: Isolator, numbered_pictures: Path, workers: int
) -> None:
    isolated(name_threads, numbered_pictures, workers)


def test_loaders_run_side_by_side(
    isolated: Isolator, numbered_pictures: Path, workers: int
) -> None:
    isolated(run_side_by_side, numbered_pictures, workers)
