"""A device without a GPU: the double of the CUDA driver below, torch's CPU tensors for its memory.

Only in a process of its own (see isolated.py), since torch must not meet the double.
"""

import contextlib
import ctypes
import subprocess
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch

ROOT = Path(__file__).resolve().parents[2]
SCHEDULES = ["eager", "lazy", "random", "starved"]


def build(directory: Path) -> Path:
    """Compiles the double."""
    library = directory / "libcuda.so.1"
    sources = sorted((ROOT / "tests" / "fake_cuda").glob("*.cpp"))
    subprocess.run(
        ["g++", "-std=c++20", "-O1", "-fPIC", "-shared", "-fvisibility=hidden"]
        + [f"-I{ROOT / 'loader' / 'src'}", "-Wl,-soname,libcuda.so.1", "-o", str(library)]
        + [str(source) for source in sources],
        check=True,
    )
    return library


class FakeDriver:
    """The double, in this process, under control."""

    def __init__(self, library: str) -> None:
        # Whoever asks for libcuda.so.1 from now on gets this one, by its name.
        self._library = ctypes.CDLL(library)
        for name, types in {
            "reset": [ctypes.c_int, ctypes.c_uint64, ctypes.c_int, ctypes.c_uint64, ctypes.c_int64],
            "report": [ctypes.c_char_p, ctypes.c_uint64],
            "make_stream": [],
            "destroy_stream": [ctypes.c_uint64],
            "adopt": [ctypes.c_uint64, ctypes.c_uint64],
            "read": [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64],
            "host_waits": [],
        }.items():
            function = getattr(self._library, f"fake_cuda_{name}")
            function.argtypes = types
            function.restype = ctypes.c_uint64
            setattr(self, name, function)

    def begin(
        self,
        schedule: str,
        seed: int = 0,
        *,
        kernel: bool = True,
        pinned_bytes: int = 1 << 30,
        lost_after: int = -1,
    ) -> None:
        self.reset(SCHEDULES.index(schedule), seed, kernel, pinned_bytes, lost_after)
        FakeDevice.free.clear()
        FakeDevice.blocks.clear()

    def complaints(self) -> str:
        text = ctypes.create_string_buffer(10_000)
        self.report(text, len(text))
        return text.value.decode()


class FakeDevice:
    """Takes the place of headrace.device.TorchDevice.

    Its allocator is stream-ordered as torch's: a block that is freed is handed out again on its
    stream at once, whatever is still queued there; never, if another stream used it.
    """

    driver: FakeDriver
    stream = 0
    recorded = 0
    blocks: ClassVar[list[torch.Tensor]] = []
    free: ClassVar[dict[tuple[int, int], list[torch.Tensor]]] = {}

    def __init__(self, device: torch.device) -> None:
        self.index = device.index or 0
        self._elsewhere: set[int] = set()

    def empty(self, shape: Any, dtype: torch.dtype, memory_format: torch.memory_format) -> Any:
        form = torch.empty(shape, dtype=dtype, memory_format=memory_format, device="meta")
        key = (FakeDevice.stream, form.nbytes)
        idle = self.free.setdefault(key, [])
        if idle:
            block = idle.pop()
        else:
            block = torch.empty(max(1, form.nbytes), dtype=torch.uint8)
            self.blocks.append(block)
            self.driver.adopt(block.data_ptr(), block.nbytes)
        tensor = block[: form.nbytes].view(dtype).as_strided(shape, form.stride())
        weakref.finalize(tensor, self._free, idle, block)
        return tensor

    def _free(self, idle: list[torch.Tensor], block: torch.Tensor) -> None:
        if block.data_ptr() not in self._elsewhere:
            idle.append(block)

    def current_stream(self) -> int:
        return FakeDevice.stream

    def record_current_stream(self, tensor: torch.Tensor) -> None:
        FakeDevice.recorded += 1
        self._elsewhere.add(tensor.data_ptr())
        # What torch does next to a tensor on the CPU is in no queue: let that be empty.
        self.driver.read(FakeDevice.stream, 0, 0)

    def constant(self, values: torch.Tensor) -> torch.Tensor:
        return values

    def move(self, data: Any) -> Any:
        return data


@contextlib.contextmanager
def fake_device(library: str) -> Iterator[FakeDriver]:
    """headrace's loaders with a device run on the double."""
    import headrace.loader

    driver = FakeDevice.driver = FakeDriver(library)
    original = headrace.loader.TorchDevice
    headrace.loader.TorchDevice = FakeDevice
    try:
        yield driver
    finally:
        headrace.loader.TorchDevice = original
