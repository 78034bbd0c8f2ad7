"""dtype= and memory_format=: the exact conversions of what torch's loader gives."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from headrace import DataLoader
from support import PIPELINES, Build, epochs, observe, train, train_v2

DTYPES = [None, torch.float16, torch.bfloat16, torch.float32]
FORMATS = [torch.contiguous_format, torch.channels_last]


def assert_converted(
    build: Build, path: str, dtype: torch.dtype | None, memory_format: torch.memory_format
) -> None:
    """headrace's batches are torch's, converted by torch."""
    loaders: list[DataLoader[Any]] = []

    def with_output(loader_type: type[TorchLoader[Any]]) -> TorchLoader[Any]:
        loaders.append(
            build(
                lambda *args, **kwargs: DataLoader(
                    *args, dtype=dtype, memory_format=memory_format, **kwargs
                )
            )
        )
        assert loaders[0].explain().path == path
        return loaders[0]

    expected, _ = observe(build, epochs(2), TorchLoader)
    found, _ = observe(with_output, epochs(2), DataLoader)
    assert len(found) == len(expected) > 2
    for one, other in zip(found, expected, strict=True):
        if not isinstance(other.event, list):
            assert type(one.event) is type(other.event)
            continue
        images, labels = other.event
        images = images.to(
            dtype if dtype and images.is_floating_point() else images.dtype,
            memory_format=memory_format,
        )
        assert one.event[0].dtype == images.dtype
        assert one.event[0].stride() == images.stride()
        assert torch.equal(one.event[0], images)
        assert torch.equal(one.event[1], labels)
        assert torch.equal(one.torch_state, other.torch_state)


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda pipeline: pipeline.__name__)
def test_native_batches_are_the_exact_conversion(
    mixed_pictures: Path, pipeline: Any, dtype: Any, memory_format: Any
) -> None:
    workers = 2 * (dtype is torch.bfloat16)

    def build(loader_type: Any) -> Any:
        dataset = ImageFolder(mixed_pictures, pipeline())
        return loader_type(dataset, batch_size=3, shuffle=True, num_workers=workers)

    assert_converted(build, "native", dtype, memory_format)


@pytest.mark.parametrize("workers", [0, 2])
def test_torch_path_is_converted_too(pictures: Path, workers: int) -> None:
    def build(loader_type: Any) -> Any:
        dataset = ImageFolder(pictures, v2.Compose([train(), v2.Lambda(torch.neg)]))
        return loader_type(dataset, batch_size=3, num_workers=workers)

    assert_converted(build, "torch", torch.bfloat16, torch.channels_last)


def test_batches_of_any_structure_are_converted() -> None:
    samples = [{"views": (torch.rand(3, 4, 5), torch.rand(6)), "name": "a"} for _ in range(4)]
    loader = DataLoader(samples, 2, dtype=torch.float16, memory_format=torch.channels_last)
    for number, batch in enumerate(loader):
        image, vector = batch["views"]
        expected = torch.stack([s["views"][0] for s in samples[2 * number : 2 * number + 2]])
        assert image.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(image, expected.half())
        assert vector.dtype == torch.float32
        assert batch["name"] == ["a", "a"]


def test_float16_at_the_end_of_a_pipeline_is_native(pictures: Path) -> None:
    def build(loader_type: Any) -> Any:
        steps = [train_v2(), v2.ToDtype(torch.float16)]
        return loader_type(ImageFolder(pictures, v2.Compose(steps)), batch_size=4, num_workers=2)

    assert_converted(build, "native", None, torch.channels_last)


def test_values_without_room_become_infinite(pictures: Path) -> None:
    """float16 ends at 65504, and below 2^-24 at zero."""

    def build(loader_type: Any) -> Any:
        steps = [v2.Resize((9, 9)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
        steps.append(v2.Normalize([0.5] * 3, [6e-6, 1e-45, 3e7]))
        return loader_type(ImageFolder(pictures, v2.Compose(steps)), batch_size=4)

    assert_converted(build, "native", torch.float16, torch.contiguous_format)


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": torch.int64},
        {"dtype": "float16"},
        {"memory_format": torch.channels_last_3d},
        {"memory_format": "channels_last"},
    ],
)
def test_bad_values_are_refused(options: dict[str, Any]) -> None:
    name, value = next(iter(options.items()))
    with pytest.raises(ValueError, match=f"{name} must be .*{value!r}"):
        DataLoader([Image.new("RGB", (2, 2))], **options)
