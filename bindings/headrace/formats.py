"""Which image formats a dataset holds, by a look at some of its files.

Pillow computes what the core does not decode, one sample after another on the consumer's thread.
torch's workers do that side by side, so that a dataset of, say, WebP files is better off there.
"""

import os
import weakref
from contextlib import suppress
from typing import Any

from headrace.recipe import NotNative
from headrace.samples import rows_of

_LOOKS = 64
_FOREIGN = {
    b"BM": "BMP",
    b"GIF8": "GIF",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"RIFF": "WebP",
    **{b"P" + digit: "PNM" for digit in (b"1", b"2", b"3", b"4", b"5", b"6")},
}

# How many of the looks met each format, by dataset. What a dataset is changed to later does not
# count: only speed depends on it.
_seen: "weakref.WeakKeyDictionary[Any, dict[str, int]]" = weakref.WeakKeyDictionary()


def check_formats(dataset: Any, num_workers: int) -> None:
    """Raises NotNative where `num_workers` processes with Pillow would be faster than we.

    One process is as fast as our one thread that asks Pillow. With more, they win when the foreign
    files' share times the processes that can run at once is above one.
    """
    processes = min(num_workers, len(os.sched_getaffinity(0)))
    if processes < 2:
        return
    if dataset not in _seen:
        _seen[dataset] = _look(dataset)
    formats = _seen[dataset]
    if sum(formats.values()) * processes > _LOOKS:
        names = " and ".join(formats)
        raise NotNative(
            dataset,
            f"so many of its files are {names} that {num_workers} worker processes with Pillow are "
            "faster; JPEG and PNG are decoded natively",
        )


def _look(dataset: Any) -> dict[str, int]:
    size = len(dataset)
    formats: dict[str, int] = {}
    if size == 0:
        return formats
    for content, *_ in rows_of(dataset, [look * size // _LOOKS for look in range(_LOOKS)]):
        start = _start_of(content)
        name = next((name for key, name in _FOREIGN.items() if start.startswith(key)), None)
        if name is not None:
            formats[name] = formats.get(name, 0) + 1
    return formats


def _start_of(content: Any) -> bytes:
    if isinstance(content, tuple):  # pixels
        return b""
    if not isinstance(content, (str, os.PathLike)):
        return bytes(memoryview(content)[:4])
    with suppress(OSError, ValueError):
        # A pipe must not keep us.
        file = os.open(content, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.read(file, 4)
        finally:
            os.close(file)
    return b""
