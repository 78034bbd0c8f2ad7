"""One line that tells whether two runs, machines or loaders give the same batches."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch


def fingerprint(batches: Iterable[Any]) -> str:
    """A hash over batches, in their order: one epoch of any loader, torch's too.

    It covers the number and structure of batches (lists and tuples, named tuples, mappings with
    their keys), of each tensor and array its dtype, shape and bytes in C order (not its device or
    strides), and of anything else its repr.

    Returns:
        "blake2b:", 32 hexadecimal digits, and how many batches there were.
    """
    digest = hashlib.blake2b(digest_size=16)
    count = 0
    for batch in batches:
        digest.update(b"batch")
        _add(digest, batch)
        count += 1
    return f"blake2b:{digest.hexdigest()} batches:{count}"


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu().contiguous()
        _text(digest, f"tensor {tensor.dtype} {list(tensor.shape)}")
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    elif isinstance(value, np.ndarray):
        _text(digest, f"array {value.dtype.str} {list(value.shape)}")
        digest.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
    elif isinstance(value, Mapping):
        _text(digest, f"mapping {len(value)}")
        for key, each in value.items():
            _text(digest, repr(key))
            _add(digest, each)
    elif isinstance(value, (list, tuple)):
        _text(digest, f"sequence {len(value)}")
        for each in value:
            _add(digest, each)
    else:
        _text(digest, f"{type(value).__qualname__} {value!r}")


def _text(digest: Any, text: str) -> None:
    data = text.encode("utf-8", "surrogateescape")
    digest.update(len(data).to_bytes(8, "little") + data)
