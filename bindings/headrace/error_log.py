"""What became of samples that could not be loaded, when that does not end the batch."""

import warnings
from typing import Any, NamedTuple

from headrace._core import Error

# Events that are kept; the count goes on.
_KEPT = 1000


class SampleError(NamedTuple):
    """A sample that could not be loaded.

    Attributes:
        path: its file, "" if it has none that is known.
        index: its key in the dataset.
        cause: the exception, as "type: message".
        replacement: the key of the sample that took its place; None if it was left out, or if it
            was itself meant to be a replacement.
        epoch: counted from 0, as :meth:`headrace.DataLoader.set_epoch` does.
        batch: its batch in the epoch, counted from 0.
    """

    path: str
    index: Any
    cause: str
    replacement: Any
    epoch: int
    batch: int


class ErrorLog:
    """The events of a loader's life: all counted, the first 1,000 kept.

    Args:
        action: what happens to such samples, for the warning.
        limit: the event after so many ends the run; None: none does.
    """

    def __init__(self, action: str, limit: int | None) -> None:
        self.count = 0
        self.events: list[SampleError] = []
        self._action = action
        self._limit = limit
        self._warned = False

    def add(self, events: list[SampleError]) -> None:
        """Takes the events of a batch whose turn has come.

        Raises:
            Error: they are too many.
        """
        for event in events:
            self.count += 1
            if len(self.events) < _KEPT:
                self.events.append(event)
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"headrace: samples that cannot be loaded are {self._action}. The first: "
                    f"{describe(event)}. loader.errors() lists them",
                    stacklevel=2,
                )
        if self._limit is not None and self.count > self._limit:
            known = events or self.events  # none if load_state_dict() told only how many
            last = f"; the last: {describe(known[-1])}" if known else ""
            raise Error(
                f"errors: {self.count} samples could not be loaded, more than max_errors="
                f"{self._limit}{last}. loader.errors() lists them: repair or remove these files, "
                "or raise max_errors"
            )


def describe(event: SampleError) -> str:
    """Form of headrace's messages: what was wrong with which file."""
    return f"{event.path or 'no file'} (sample {event.index}): {event.cause}"
