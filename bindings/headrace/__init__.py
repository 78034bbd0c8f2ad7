"""headrace keeps a GPU fed: torch's DataLoader in C++, the same batches bit for bit.

Change one import::

    from headrace import DataLoader
"""

from headrace._requirements import check_requirements

check_requirements()

from headrace._core import Error, __version__  # noqa: E402
from headrace.image_dataset import ImageDataset  # noqa: E402
from headrace.loader import DataLoader  # noqa: E402
from headrace.route import Explanation  # noqa: E402
from headrace.serving import transform_to_json  # noqa: E402

__all__ = [
    "DataLoader",
    "Error",
    "Explanation",
    "ImageDataset",
    "__version__",
    "transform_to_json",
]
