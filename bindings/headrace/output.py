"""How images are delivered, beyond what the dataset's transform makes of them."""

import copy
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Output:
    """The dtype and the memory format of a batch's images.

    What counts as images are tensors of four dimensions, [batch, channels, height, width].

    Attributes:
        dtype: images of floating point are rounded to it, to nearest, ties to even; None: left as
            they are. Images of integers always stay what they are.
        memory_format: torch.contiguous_format or torch.channels_last.
    """

    dtype: torch.dtype | None = None
    memory_format: torch.memory_format = torch.contiguous_format

    def __post_init__(self) -> None:
        if self.dtype is not None and not (
            isinstance(self.dtype, torch.dtype) and self.dtype.is_floating_point
        ):
            raise ValueError(
                "dtype must be a dtype of floating point, such as torch.bfloat16, or None for what "
                f"the transform gives; got {self.dtype!r}"
            )
        if self.memory_format not in (torch.contiguous_format, torch.channels_last):
            raise ValueError(
                "memory_format must be torch.contiguous_format or torch.channels_last; got "
                f"{self.memory_format!r}"
            )

    @property
    def plain(self) -> bool:
        """Whether nothing is to be done."""
        return self.dtype is None and self.memory_format == torch.contiguous_format

    def dtype_of(self, dtype: torch.dtype) -> torch.dtype:
        """What becomes of images of `dtype`."""
        return self.dtype if self.dtype is not None and dtype.is_floating_point else dtype

    def batch(self, data: Any) -> Any:
        """`data` with its images converted: a tensor, or lists, tuples and dicts of such.

        Where nothing is to be done it is the very object, whatever a collate function made.
        """
        return data if self.plain else self._converted(data)

    def _converted(self, data: Any) -> Any:
        if isinstance(data, torch.Tensor):
            if data.dim() != 4:
                return data
            return data.to(self.dtype_of(data.dtype), memory_format=self.memory_format)
        if isinstance(data, dict):
            converted = copy.copy(data)  # dicts of other kinds may be made in other ways
            converted.update({key: self._converted(value) for key, value in data.items()})
            return converted
        if isinstance(data, tuple) and hasattr(data, "_fields"):
            return type(data)(*map(self._converted, data))
        if type(data) in (list, tuple):
            return type(data)(map(self._converted, data))
        return data

    def row(self, image: torch.Tensor) -> torch.Tensor:
        """The bytes of one image [channels, height, width] as they lie in a batch.

        Returns:
            uint8, one dimension.
        """
        image = image.to(self.dtype_of(image.dtype))
        if self.memory_format == torch.channels_last:
            image = image.permute(1, 2, 0)
        return image.contiguous().view(-1).view(torch.uint8)
