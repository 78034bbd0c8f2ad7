"""Batches on a device, on the double of the CUDA driver: the bits, the waits, the ends."""

import gc
import re
import subprocess
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import fake_device
import headrace
import headrace._core
import headrace.verify
from fake_device import FakeDevice
from fake_device import fake_device as on_the_double
from headrace.cli import main
from headrace.device import finish_pixels
from headrace.recipe import to_json
from isolated import Isolator

TRANSFORM = [
    v2.RandomResizedCrop(17),
    v2.RandomHorizontalFlip(),
    v2.ToImage(),
    v2.ToDtype(torch.float32, scale=True),
    v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
]


# One channel: nothing of it is left to the device.
GRAY = [
    v2.Grayscale(),
    v2.RandomCrop(17, padding=2, pad_if_needed=True),
    v2.RandomHorizontalFlip(),
    v2.ToImage(),
    v2.ToDtype(torch.float32, scale=True),
]


@pytest.fixture(scope="session")
def double(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_device.build(tmp_path_factory.mktemp("fake_cuda"))


def make(folder: str, *, device: str | None, **options: Any) -> headrace.DataLoader[Any]:
    dataset = ImageFolder(folder, v2.Compose(options.pop("transform", TRANSFORM)))
    torch.manual_seed(7)
    return headrace.DataLoader(
        dataset, batch_size=3, shuffle=True, device=device, threads=2, **options
    )


def consume(driver: fake_device.FakeDriver, batch: list[torch.Tensor]) -> list[torch.Tensor]:
    """What a training step finds in the batch; the host waits for its end."""
    for tensor in batch:
        driver.read(FakeDevice.stream, tensor.data_ptr(), tensor.nbytes)
    return [tensor.clone() for tensor in batch]


def assert_same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and one.stride() == other.stride()
        assert torch.equal(one, other)


# --- equality -------------------------------------------------------------------------------------


def same_batches(library: str, folder: str) -> None:
    seed = 0
    with on_the_double(library) as driver:
        for options in (
            {"num_workers": 2},
            {"num_workers": 2, "dtype": torch.bfloat16, "memory_format": torch.channels_last},
            {"num_workers": 3, "prefetch_to_device": 4, "dtype": torch.float16},
            {"num_workers": 1, "persistent_workers": True, "memory_format": torch.channels_last},
            {"num_workers": 2, "transform": [*TRANSFORM[:2], v2.PILToTensor()]},
            {"num_workers": 2, "transform": GRAY},
            {"num_workers": 0},
        ):
            loaders = [make(folder, device=None, **options)]
            expected = [batch for _ in range(2) for batch in loaders[0]]
            for schedule in fake_device.SCHEDULES:
                for kernel in (True, False):
                    seed += 1
                    driver.begin(schedule, seed, kernel=kernel)
                    loader = make(folder, device="cuda:0", **options)
                    found = []
                    for _ in range(2):
                        for batch in loader:
                            # What torch finished itself is memory that the double does not know.
                            found.append(consume(driver, batch if kernel else []) or batch)
                            del batch
                    for one, other in zip(found, expected, strict=True):
                        assert_same(one, other)
                    del loader
                    gc.collect()
                    assert driver.complaints() == "", (options, schedule, driver.complaints())


def test_batches_on_the_device_are_those_on_the_cpu(
    isolated: Isolator, double: Path, mixed_pictures: Path, pictures: Path
) -> None:
    isolated(same_batches, double, pictures)
    isolated(same_batches_with_errors, double, mixed_pictures)


def same_batches_with_errors(library: str, folder: str) -> None:
    def events(loader: Any, look: Any) -> list[Any]:
        found: list[Any] = []
        iterator = iter(loader)
        while True:
            try:
                found.append(look(next(iterator)))
            except StopIteration:
                return found
            except Exception as error:
                found.append(str(error).splitlines()[-1])

    with on_the_double(library) as driver:
        expected = events(make(folder, device=None, num_workers=2), lambda batch: batch)
        assert any(isinstance(event, str) for event in expected)
        driver.begin("random", 3)
        loader = make(folder, device="cuda", num_workers=2)
        found = events(loader, lambda batch: consume(driver, batch))
        assert loader.stats()["questions"] > 0
        for one, other in zip(found, expected, strict=True):
            if isinstance(other, str):
                assert one == other, (one, other)
            else:
                assert_same(one, other)
        del loader
        gc.collect()
        assert driver.complaints() == ""


# --- how it ends ----------------------------------------------------------------------------------


def ends(library: str, folder: str) -> None:
    with on_the_double(library) as driver:
        for seed in range(24):
            driver.begin(fake_device.SCHEDULES[seed % 4], seed)
            loader = make(folder, device="cuda", num_workers=2, persistent_workers=seed % 3 == 0)
            for number, batch in enumerate(loader):
                consume(driver, batch)
                if number == seed % 5:
                    break
            del batch
            if seed % 2:
                iterator = iter(loader)  # persistent: what was on its way is dropped
                consume(driver, next(iterator))
                del iterator
            del loader
            gc.collect()
            assert driver.complaints() == "", (seed, driver.complaints())


def test_leaving_early_lets_copies_end_before_their_memory(
    isolated: Isolator, double: Path, pictures: Path
) -> None:
    isolated(ends, double, pictures)


def device_is_lost(library: str, folder: str) -> None:
    with on_the_double(library) as driver:
        driver.begin("random", 1, lost_after=25)
        iterator = iter(make(folder, device="cuda", num_workers=2))
        with pytest.raises(headrace.Error, match="must be started again") as caught:
            for batch in iterator:
                consume(driver, batch)
        assert caught.value.code == "device_failed"
        names = {thread.name for thread in threading.enumerate()}
        assert names == {"MainThread"}
        with pytest.raises(headrace.Error, match="closed"):
            next(iterator)


def test_a_lost_device_is_an_error_and_the_process_ends(
    isolated: Isolator, double: Path, pictures: Path
) -> None:
    isolated(device_is_lost, double, pictures)


def batches_at_exit(library: str, folder: str) -> None:
    driver = fake_device.FakeDriver(library)
    FakeDevice.driver = driver
    headrace.loader.TorchDevice = FakeDevice  # type: ignore[misc,assignment]
    driver.begin("lazy", 1)
    loader = make(folder, device="cuda", num_workers=2)
    globals()["kept"] = (loader, iter(loader), next(iter(loader)))


def test_the_interpreter_ends_with_copies_under_way(
    isolated: Isolator, double: Path, pictures: Path
) -> None:
    isolated(batches_at_exit, double, pictures)


# --- streams, memory, statistics ------------------------------------------------------------------


def other_stream(library: str, folder: str) -> None:
    with on_the_double(library) as driver:
        driver.begin("random", 5)
        streams = [driver.make_stream(), driver.make_stream()]
        expected = list(make(folder, device=None, num_workers=2))
        loader = make(folder, device="cuda", num_workers=2)
        FakeDevice.stream, FakeDevice.recorded = streams[0], 0
        iterator = iter(loader)
        for number, other in enumerate(expected):
            FakeDevice.stream = streams[number % 2]
            batch = next(iterator)
            assert_same(consume(driver, batch), other)
            del batch
        assert FakeDevice.recorded > 0
        del loader, iterator
        gc.collect()
        for stream in streams:
            driver.destroy_stream(stream)
        assert driver.complaints() == ""


def test_batches_may_be_consumed_on_another_stream(
    isolated: Isolator, double: Path, pictures: Path
) -> None:
    isolated(other_stream, double, pictures)


def short_of_pinned_memory(library: str, folder: str) -> None:
    with on_the_double(library) as driver:
        expected = list(make(folder, device=None, num_workers=2))
        driver.begin("eager", pinned_bytes=3 * 4096)
        loader = make(folder, device="cuda", num_workers=2)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = [consume(driver, batch) for batch in loader]
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
        assert [str(one.message) for one in caught if "pinned memory" in str(one.message)]
        stats = loader.stats()["device"]
        assert stats["pageable_bytes"] > 0
        assert 0 < stats["pinned_bytes"] <= 3 * 4096


def test_short_pinned_memory_is_said_and_survived(
    isolated: Isolator, double: Path, pictures: Path
) -> None:
    isolated(short_of_pinned_memory, double, pictures)


def statistics(library: str, folder: str) -> None:
    with on_the_double(library) as driver:
        driver.begin("eager")
        loader = make(folder, device="cuda", num_workers=2)
        assert loader.stats() == {}
        batches = 0
        for batch in loader:
            consume(driver, batch)
            batches += 1
        stats = loader.stats()["device"]
        assert 0 < stats["batches"] <= batches
        assert stats["bytes"] > 0 and stats["copy_ns"] > 0 and stats["bytes_per_s"] > 0
        assert 0 <= stats["overlap"] <= 1
        assert stats["host_waits"] == 0
        assert stats["finish"] in ("kernel", "headrace was built without nvcc")


def test_stats_tell_of_the_copies(isolated: Isolator, double: Path, pictures: Path) -> None:
    isolated(statistics, double, pictures)


# --- the torch path, and what needs no device -----------------------------------------------------


def torch_path(library: str, folder: str) -> None:
    with on_the_double(library):
        moved = []
        FakeDevice.move = lambda self, data: moved.append(data) or data  # type: ignore[assignment]
        loader = make(folder, device="cuda", collate_fn=lambda samples: default_collate(samples))
        assert loader.explain().path == "torch"
        batches = list(loader)
        assert len(moved) == len(batches) > 0


def test_on_torchs_path_torch_moves_the_batches(
    isolated: Isolator, double: Path, pictures: Path
) -> None:
    isolated(torch_path, double, pictures)


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True, "memory_format": torch.channels_last},
        {"num_workers": 0, "dtype": torch.float16},
    ],
)
def test_pin_memory_has_the_engine_write_into_torchs_own_memory(
    mixed_pictures: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ordinary memory for pinned, since that needs a GPU."""
    blocks: list[torch.Tensor] = []

    def allocate(count: int) -> torch.Tensor:
        blocks.append(torch.full((count,), 0xA5, dtype=torch.uint8))
        return blocks[-1]

    def rounds(loader: Any) -> list[Any]:
        found: list[Any] = []
        next(iter(loader))  # and left: its other batches are dropped
        for _ in range(2):
            iterator = iter(loader)
            while True:
                try:
                    found.append(next(iterator))
                except StopIteration:
                    break
                except Exception as error:
                    found.append(str(error).splitlines()[-1])
        return found

    expected = rounds(make(str(mixed_pictures), device=None, **options))
    monkeypatch.setattr("headrace.iterator.pinned_bytes", allocate)
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    found = rounds(make(str(mixed_pictures), device=None, pin_memory=True, **options))
    addresses = {block.data_ptr() for block in blocks}
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, str):
            assert one == other
        else:
            assert_same(one, other)
            assert {tensor.data_ptr() for tensor in one} <= addresses


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_torch_finishes_pixels_as_the_cpu_does(
    dtype: str, memory_format: torch.memory_format
) -> None:
    recipe = to_json(v2.Compose(TRANSFORM))
    recipe = recipe[: recipe.rindex("]")] + f', {{"op": "to_dtype", "dtype": "{dtype}"}}]}}'
    finish = headrace._core.Transform(recipe).split().finish
    assert finish is not None and finish[0] == dtype
    table = torch.frombuffer(bytearray(finish[1]), dtype=getattr(torch, dtype)).view(3, 256)
    pixels = torch.randint(256, (4, 3, 5, 6), dtype=torch.uint8)
    mirrored = torch.tensor([0, 1, 0, 255], dtype=torch.uint8)
    result = finish_pixels(pixels, mirrored, table, memory_format)
    assert result.is_contiguous(memory_format=memory_format)
    expected = v2.functional.to_dtype(pixels, torch.float32, scale=True)
    expected = v2.functional.normalize(expected, list(TRANSFORM[4].mean), list(TRANSFORM[4].std))
    expected = torch.stack(
        [image.flip(2) if flip else image for image, flip in zip(expected, mirrored, strict=True)]
    )
    assert torch.equal(result, expected.to(getattr(torch, dtype)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_cuda_torchs_own_error_is_raised(pictures: Path) -> None:
    loader = make(str(pictures), device="cuda", num_workers=2)
    with pytest.raises((RuntimeError, AssertionError)) as expected:
        torch.empty(0, device="cuda")
    with pytest.raises(expected.type, match=re.escape(str(expected.value).splitlines()[0])):
        iter(loader)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_verify_names_a_device_that_cannot_be_had(
    pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(pictures), "--device", "cuda:0"]) == 2
    assert "--device cuda:0 cannot be had" in capsys.readouterr().err
    assert main(["verify", str(pictures), "--device", "meta"]) == 2
    assert "CUDA device" in capsys.readouterr().err


def verified(library: str, folder: str) -> None:
    with on_the_double(library) as driver:
        headrace.verify.TorchDevice = FakeDevice  # type: ignore[misc,assignment]
        driver.begin("eager")
        assert main(["verify", folder, "--device", "cuda", "--epochs", "2", "--persistent"]) == 0


def test_verify_compares_what_is_on_the_device(
    isolated: Isolator, double: Path, pictures: Path
) -> None:
    assert "identical" in isolated(verified, double, pictures)


def test_constructor_arguments_are_public_and_checked(pictures: Path) -> None:
    loader = make(str(pictures), device="cuda:0", prefetch_to_device=3)
    assert (loader.device, loader.prefetch_to_device) == ("cuda:0", 3)
    assert make(str(pictures), device="cpu")._torch_device() is None
    with pytest.raises(ValueError, match="prefetch_to_device"):
        make(str(pictures), device="cuda", prefetch_to_device=0)
    with pytest.raises(ValueError, match="CUDA device"):
        make(str(pictures), device="meta")


def test_the_module_needs_no_cuda_library() -> None:
    needed = subprocess.run(
        ["readelf", "-d", headrace._core.__file__], capture_output=True, text=True, check=True
    ).stdout
    libraries = re.findall(r"NEEDED.*\[(.*)\]", needed)
    assert libraries
    assert not [name for name in libraries if re.match(r"lib(cu|nv)", name)]
