"""headrace keeps a GPU fed: torch's DataLoader in C++, the same batches bit for bit.

Change one import::

    from headrace import DataLoader
"""

import sys

from headrace._requirements import check_requirements, is_command

try:
    check_requirements()
except ImportError as error:
    if not is_command():
        raise
    print(f"headrace: {error}", file=sys.stderr)
    sys.exit(2)

from headrace._core import Error, __version__
from headrace.differential import stalls
from headrace.fingerprints import fingerprint
from headrace.image_dataset import ImageDataset
from headrace.image_folder import ImageFolder
from headrace.loader import DataLoader
from headrace.profiling import profile
from headrace.route import Explanation
from headrace.serving import transform_to_json
from headrace.sharded_sampler import ShardedSampler

__all__ = [
    "DataLoader",
    "Error",
    "Explanation",
    "ImageDataset",
    "ImageFolder",
    "ShardedSampler",
    "__version__",
    "fingerprint",
    "profile",
    "stalls",
    "transform_to_json",
]
