"""Says so where another library is about to put torch's DataLoader in the place of headrace's."""

import warnings
from typing import Any

WARNING = (
    "Accelerate's prepare() makes torch's own DataLoader of this headrace.DataLoader. To stay with "
    "headrace, prepare it by headrace.accelerate.adapt(accelerator)"
)


class AskedByAccelerate:
    """`_is_accelerate_prepared`: what Accelerate looks up just before it rebuilds a loader.

    It can be set on an object, as Accelerate does.
    """

    def __get__(self, loader: Any, owner: Any = None) -> bool:
        if loader is not None:
            warnings.warn(WARNING, stacklevel=2)
        return False
