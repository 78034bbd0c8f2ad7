"""An exception between the sample that raised it and its batch's turn."""

from typing import Any

from torch._utils import ExceptionWrapper


class Failure:
    """An exception on its way to the batch's turn."""

    def __init__(
        self, error: Exception | ExceptionWrapper, note: tuple[str, Any, str] | None
    ) -> None:
        self._error: Exception | ExceptionWrapper | None = error
        self._note = note

    def reraise(self) -> None:
        """Raises it, once. What catches it holds no cycle: iterators die with their last user."""
        error = self._take()
        if self._note is not None:
            path, index, reason = self._note
            vars(error).update(sample_path=path, sample_index=index)
            if hasattr(error, "add_note"):
                error.add_note(f"headrace: {path} (sample {index}): {reason}")
        try:
            raise error
        finally:
            del error

    def _take(self) -> Exception:
        error, self._error = self._error, None
        if not isinstance(error, ExceptionWrapper):
            assert error is not None
            return error
        try:
            error.reraise()
        except Exception as rebuilt:
            return rebuilt.with_traceback(None)
        raise AssertionError("not reached")
