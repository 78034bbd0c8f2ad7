"""The steps of bench/gpu.sh; see there. Each has a time limit; one that fails stops no other."""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PICTURES = 1536
BATCH = 128
STEPS = 40


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--patience", type=float, default=1, help="factor of all time limits")
    parser.add_argument("cmake_options", nargs="*")
    arguments = parser.parse_args()
    steps = Steps(arguments.build, arguments.out, arguments.patience)
    steps.run("build", lambda: steps.build_all(arguments.cmake_options))
    steps.run("tests on the double", steps.tests_on_the_double)
    sys.path.insert(0, str(steps.package))
    steps.run("tests", steps.tests, needs_gpu=True)
    steps.run("compute-sanitizer", steps.sanitizer, needs_gpu=True)
    steps.run("pictures", steps.make_pictures)
    steps.run("verify --device cuda", steps.verify, needs_gpu=True)
    steps.run("copy rate and overlap", steps.copies, needs_gpu=True)
    steps.run("idle in a ResNet-50 step", steps.idle, needs_gpu=True)
    return steps.finish()


class Steps:
    """What is done, in order, and what came of it."""

    def __init__(self, build: Path, out: Path, patience: float) -> None:
        self.build, self.out, self.patience = build, out, patience
        self.package = build / "py"
        self.pictures = build / "pictures"
        self.environment = dict(os.environ, PYTHONPATH=str(self.package))
        self.begun = time.monotonic()
        self.result: dict[str, Any] = {"machine": machine(), "steps": {}}

    def run(self, name: str, step: Callable[[], Any], *, needs_gpu: bool = False) -> None:
        begun = time.monotonic()
        entry: dict[str, Any] = {}
        if needs_gpu and not has_gpu():
            entry["status"] = "skipped: no GPU"
        else:
            try:
                entry["status"], entry["found"] = "ok", step()
            except Exception as error:
                entry["status"] = f"failed: {type(error).__name__}: {error}"
        entry["seconds"] = round(time.monotonic() - begun, 1)
        self.result["steps"][name] = entry
        print(f"{name}: {entry['status']} ({entry['seconds']} s)", flush=True)

    def finish(self) -> int:
        self.result["seconds"] = round(time.monotonic() - self.begun, 1)
        (self.out / "gpu.json").write_text(json.dumps(self.result, indent=1, default=str))
        plot(self.result["steps"], self.out / "gpu.png")
        print(f"{self.result['seconds']} s in all; {self.out / 'gpu.json'}")
        return int(
            any(step["status"].startswith("failed") for step in self.result["steps"].values())
        )

    def call(self, name: str, command: list[Any], limit_s: float) -> str:
        """Runs a command, keeps what it printed, and returns the end of that."""
        log = self.out / f"{name}.log"
        with log.open("w") as file:
            done = subprocess.run(
                [str(part) for part in command],
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=self.environment,
                timeout=limit_s * self.patience,
            )
        lines = log.read_text(errors="replace").strip().splitlines() or [""]
        if done.returncode != 0:
            raise RuntimeError(f"exit status {done.returncode}, see {log}: {lines[-1]}")
        return lines[-1]

    # --- build and tests --------------------------------------------------------------------------

    def build_all(self, options: list[str]) -> str:
        import pybind11

        modes = ["-DCMAKE_BUILD_TYPE=Release", "-DHEADRACE_PYTHON=ON", "-DHEADRACE_TESTS=ON"]
        found = f"-Dpybind11_DIR={pybind11.get_cmake_dir()}"
        place = ["-S", ROOT, "-B", self.build / "cmake", "-G", "Ninja"]
        self.call("configure", ["cmake", *place, *modes, found, *options], 60)
        targets = ["_core", "test_cuda_driver", "test_device_copier", "test_device_finish"]
        last = self.call("build", ["cmake", "--build", self.build / "cmake", "-t", *targets], 240)
        shutil.rmtree(self.package, ignore_errors=True)
        shutil.copytree(ROOT / "bindings" / "headrace", self.package / "headrace")
        for module in (self.build / "cmake" / "bindings").glob("_core*.so"):
            shutil.copy(module, self.package / "headrace")
        return last

    def tests_on_the_double(self) -> str:
        tests = self.build / "cmake" / "tests"
        for name in ("cuda_driver", "device_finish", "device_copier"):
            last = self.call(f"test_{name}", [tests / f"test_{name}"], 60)
        mutants = (self.out / "test_device_copier.log").read_text()
        found = [line for line in mutants.splitlines() if line.startswith("mutants killed")]
        return f"{found[-1]}; {last}"

    def pytest(self, *options: str) -> list[Any]:
        return [sys.executable, "-m", "pytest", "-q", "tests/python/test_device_gpu.py", *options]

    def tests(self) -> str:
        return self.call("tests", self.pytest(), 120)

    def sanitizer(self) -> dict[str, str]:
        tool = shutil.which("compute-sanitizer")
        if tool is None:
            raise RuntimeError("there is no compute-sanitizer on PATH")
        options = ["--error-exitcode", "9", "--target-processes", "all"]
        test = self.pytest("-k", "bits_are and bfloat16", "-p", "no:cacheprovider")
        return {
            check: self.call(f"sanitizer_{check}", [tool, "--tool", check, *options, *test], 60)
            for check in ("memcheck", "racecheck")
        }

    def make_pictures(self) -> str:
        if self.pictures.is_dir():
            return "there already"
        script = [sys.executable, "examples/make_dataset.py", self.pictures]
        return self.call("pictures", [*script, "--images", PICTURES], 60)

    def verify(self) -> str:
        command = [sys.executable, "-m", "headrace", "verify", self.pictures, "--device", "cuda"]
        return self.call("verify", [*command, "--num-workers", "4", "--batch-size", BATCH], 90)

    # --- measurements -----------------------------------------------------------------------------

    def copies(self) -> dict[str, Any]:
        """The rate of our copies, by the device's clock, beside the card's own limit."""
        import torch

        loader = our_loader(self.pictures)
        for images, _ in loader:
            images.sum()
        torch.cuda.synchronize()
        stats = loader.stats()["device"]
        limit = pinned_limit(stats["bytes"] // max(1, stats["batches"]))
        return {
            "pinned_limit_bytes_per_s": limit,
            "ours_bytes_per_s": stats["bytes_per_s"],
            "of_the_limit": stats["bytes_per_s"] / limit,
            "overlap": stats["overlap"],
            "stats": stats,
        }

    def idle(self) -> dict[str, Any]:
        """The GPU's idle time, and how many cores would keep it fed."""
        import torch

        cores = len(os.sched_getaffinity(0))
        alone = loader_rate(our_loader(self.pictures))
        found: dict[str, Any] = {}
        for compiled in (False, True):
            name = "compiled" if compiled else "eager"
            step = resnet_step(compiled)
            fed = measure(step, resident_batches())
            found[name] = {"resident": fed}
            for system, make in (("torch", torch_loader), ("headrace", our_loader)):
                found[name][system] = measure(step, endless(make(self.pictures)))
            found[name]["cores_needed"] = cores * fed["images_per_s"] / alone
            del step
            torch.cuda.empty_cache()
        return {"modes": found, "headrace_alone_images_per_s": alone, "cores": cores}


def machine() -> dict[str, Any]:
    import torch

    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cores": len(os.sched_getaffinity(0)),
    }
    if has_gpu():
        found["gpu"] = torch.cuda.get_device_name()
        found["cuda"] = torch.version.cuda
    return found


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def transform() -> Any:
    from torchvision import transforms as v1

    return v1.Compose(
        [
            v1.RandomResizedCrop(224),
            v1.RandomHorizontalFlip(),
            v1.ToTensor(),
            v1.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )


def our_loader(pictures: Path) -> Any:
    import torch
    from torchvision.datasets import ImageFolder

    from headrace import DataLoader

    return DataLoader(
        ImageFolder(str(pictures), transform()),
        BATCH,
        shuffle=True,
        num_workers=4,
        drop_last=True,
        device="cuda",
        prefetch_to_device=2,
        dtype=torch.bfloat16,
        memory_format=torch.channels_last,
    )


def torch_loader(pictures: Path) -> Any:
    """As it is usually written: workers on all cores, pinned memory, copies that do not block."""
    import torch
    from torchvision.datasets import ImageFolder

    loader = torch.utils.data.DataLoader(
        ImageFolder(str(pictures), transform()),
        BATCH,
        shuffle=True,
        num_workers=len(os.sched_getaffinity(0)),
        drop_last=True,
        pin_memory=True,
        persistent_workers=True,
    )

    class ToDevice:
        def __iter__(self) -> Iterator[Any]:
            for images, labels in loader:
                images = images.to("cuda", non_blocking=True)
                yield (
                    images.to(torch.bfloat16, memory_format=torch.channels_last),
                    labels.to("cuda", non_blocking=True),
                )

    return ToDevice()


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def resident_batches() -> Iterator[Any]:
    """One batch that is on the device already: the step at its fastest."""
    import torch

    images = torch.randn(BATCH, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(2, (BATCH,), device="cuda")
    while True:
        yield images, labels


def resnet_step(compiled: bool) -> Callable[[Any, Any], None]:
    import torch
    from torchvision.models import resnet50

    model = resnet50(num_classes=10).cuda().to(torch.bfloat16, memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    forward = torch.compile(model) if compiled else model
    loss_of = torch.nn.CrossEntropyLoss()

    def step(images: Any, labels: Any) -> None:
        optimiser.zero_grad(set_to_none=True)
        loss_of(forward(images).float(), labels).backward()
        optimiser.step()

    return step


def measure(step: Callable[[Any, Any], None], batches: Iterator[Any]) -> dict[str, float]:
    """Times steps by the device's clock: within them, and between one's end and the next's begin,
    when the device had nothing to do but to wait for data (or for the host)."""
    import torch

    for _ in range(8):
        step(*next(batches))
    torch.cuda.synchronize()
    events = [(torch.cuda.Event(True), torch.cuda.Event(True)) for _ in range(STEPS)]
    begun = time.perf_counter()
    for start, end in events:
        batch = next(batches)
        start.record()
        step(*batch)
        end.record()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    total_ms = events[0][0].elapsed_time(events[-1][1])
    busy_ms = sum(start.elapsed_time(end) for start, end in events)
    return {
        "images_per_s": STEPS * BATCH / seconds,
        "step_ms": busy_ms / STEPS,
        "idle_between_steps": 1 - busy_ms / total_ms,
    }


def loader_rate(loader: Any) -> float:
    """Images a second when nothing is done with them."""
    import torch

    batches = endless(loader)
    next(batches)
    begun = time.perf_counter()
    for _ in range(20):
        next(batches)
    torch.cuda.synchronize()
    return 20 * BATCH / (time.perf_counter() - begun)


def pinned_limit(size: int) -> float:
    """Bytes a second that the card takes from pinned memory, in copies of `size` bytes."""
    import torch

    source = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(size, dtype=torch.uint8, device="cuda")
    best_ms = float("inf")
    for _ in range(20):
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        target.copy_(source, non_blocking=True)
        end.record()
        torch.cuda.synchronize()
        best_ms = min(best_ms, start.elapsed_time(end))
    return size / best_ms * 1e3


def plot(steps: dict[str, Any], path: Path) -> None:
    """What share of the time the GPU had nothing to do, and images a second, by loader."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 4), layout="constrained")
    step = steps["idle in a ResNet-50 step"]
    if "found" not in step:
        for axis in axes:
            axis.set_axis_off()
        figure.suptitle(f"ResNet-50: {step['status']}")
    else:
        systems = ["torch", "headrace", "resident"]
        for axis, key, title in (
            (axes[0], "idle_between_steps", "GPU idle between steps (share)"),
            (axes[1], "images_per_s", "images/s"),
        ):
            for offset, (mode, entry) in enumerate(step["found"]["modes"].items()):
                places = [place + 0.4 * offset for place in range(len(systems))]
                axis.bar(places, [entry[name][key] for name in systems], 0.38, label=mode)
            axis.set_xticks([place + 0.2 for place in range(len(systems))], systems)
            axis.set_title(title)
            axis.legend()
        figure.suptitle(f"ResNet-50, bfloat16, channels_last, batch {BATCH}")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
