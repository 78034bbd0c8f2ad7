"""Batches on a real GPU. Everywhere else these tests are skipped, visibly; test_device.py has the
same on the double of the driver."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from headrace import DataLoader
from headrace.cli import main

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

TRANSFORM = v1.Compose(
    [
        v1.RandomResizedCrop(64),
        v1.RandomHorizontalFlip(),
        v1.ToTensor(),
        v1.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
)


def make(folder: Path, **options: Any) -> DataLoader[Any]:
    torch.manual_seed(3)
    options = {"num_workers": 2, **options}
    return DataLoader(ImageFolder(str(folder), TRANSFORM), 3, shuffle=True, **options)


def delay(milliseconds: int = 20) -> None:
    """Keeps the current stream busy, so that whoever forgets to wait for it shows."""
    torch.cuda._sleep(milliseconds * 1_500_000)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_bits_are_those_on_the_cpu(
    pictures: Path, dtype: torch.dtype, memory_format: torch.memory_format
) -> None:
    options = {"dtype": dtype, "memory_format": memory_format}
    expected = list(make(pictures, **options))
    loader = make(pictures, device="cuda", **options)
    for one, other in zip(loader, expected, strict=True):
        for found, wanted in zip(one, other, strict=True):
            assert found.device.type == "cuda"
            assert found.stride() == wanted.stride()
            assert torch.equal(found.cpu(), wanted)


def test_bits_survive_busy_streams(pictures: Path) -> None:
    expected = list(make(pictures))
    sums = []
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(10):
        loader = iter(make(pictures, device="cuda", prefetch_to_device=3))
        for number, other in enumerate(expected):
            with torch.cuda.stream(streams[number % 2]):
                delay(3)
                images, _ = next(loader)
                sums.append(((images == other[0].cuda()).all(), number))
                images.zero_()  # whoever gets this memory next must wait for it
                del images
    torch.cuda.synchronize()
    assert all(bool(same) for same, _ in sums)


def test_next_does_not_wait_for_the_device(pictures: Path) -> None:
    loader = make(pictures, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in loader:
            pass
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert loader.stats()["device"]["host_waits"] == 0


def test_a_step_is_captured_into_a_graph_beside_the_loader(pictures: Path) -> None:
    loader = iter(make(pictures, device="cuda", drop_last=True))
    images, _ = next(loader)
    static = images.clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        static.square().sum()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = static.square().sum()
    for images, _ in loader:
        static.copy_(images)
        graph.replay()
        assert torch.equal(result, images.square().sum())


def test_memory_stays_flat(pictures: Path) -> None:
    def epoch() -> int:
        for images, _ in make(pictures, device="cuda"):
            images.sum()
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.mem_get_info()[0]

    for _ in range(3):
        epoch()
    free = epoch()
    for _ in range(20):
        epoch()
    assert free - epoch() < 4 << 20


def test_pinned_batches_may_be_copied_without_blocking(pictures: Path) -> None:
    expected = list(make(pictures))
    copies = []
    for images, _ in make(pictures, pin_memory=True):
        assert images.is_pinned()
        delay(3)
        copies.append(images.to("cuda", non_blocking=True))
        del images  # used again by torch once the copy is over, not before
    for copy, (images, _) in zip(copies, expected, strict=True):
        assert torch.equal(copy.cpu(), images)


def test_verify_on_the_device(pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(pictures), "--device", "cuda", "--epochs", "2"]) == 0
    assert "identical" in capsys.readouterr().out
