"""Who may include what. The tables here are the architecture; a new file needs a line in them."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Every file of the library belongs to a stage: file names without their extension.
STAGES = {
    "values": {"api", "dlpack", "error", "field", "sample_key", "version"},
    "threads": {"own_thread", "thread_cpu", "threads"},
    "random": {"random"},
    "image": {
        "byte_order",
        "exif_orientation",
        "image",
        "image_codec",
        "jpeg",
        "jpeg_decoder",
        "jpeg_entropy",
        "jpeg_inspect",
        "jpeg_metadata",
        "png_decoder",
        "png_file",
        "png_inspect",
    },
    "transform": {
        "field_writer",
        "field_writer_vbmi",
        "float_bits",
        "resample",
        "resample_avx2",
        "resample_kernels",
        "resample_vnni",
        "resample_weights",
        "resample_x86",
        "transform",
        "transform_impl",
        "transform_json",
        "transform_plan",
        "transform_split",
    },
    "buffer_pool": {"buffer", "buffer_pool"},
    "source": {"folder_listing", "source"},
    "order": {"order"},
    "reader": {
        "auto_reader",
        "file_system",
        "pread_reader",
        "read_ahead",
        "read_queue",
        "reader",
        "uring_reader",
        "uring_ring",
    },
    "plan_stream": {"plan_stream"},
    "slot_ring": {"slot_ring"},
    "executor": {"executor", "tbb_executor", "thread_executor"},
    "engine": {"batch", "decode_queue", "engine", "engine_counters", "engine_parts"},
    "device": {
        "cuda_abi",
        "cuda_driver",
        "device",
        "device_copier",
        "device_dlpack",
        "device_events",
        "device_finish",
        "device_kernel",
        "device_memory",
        "nvtx",
    },
    "loader": {"loader"},
    "trace": {
        "trace",
        "trace_accounting",
        "trace_event",
        "trace_intervals",
        "trace_reader",
        "trace_record",
        "trace_splitter",
    },
}

# What every stage may include.
COMMON = {"values", "threads"}

# Whose public headers a stage may include beside its own files and COMMON. The engine wires the
# stages together and may include everything.
MAY_USE = {
    "transform": {"image", "random"},
    "reader": {"buffer_pool", "source"},
    "plan_stream": {"image", "random", "transform"},
    "slot_ring": {"buffer_pool"},
    "device": {"buffer_pool", "engine", "transform"},
    "loader": {"buffer_pool", "engine", "order", "random", "source", "transform"},
}

# Which files of the library may include a foreign library's headers.
OWNERS = {
    r"(jpeglib|jpegint|jerror)\.h": r"jpeg_decoder\.cpp",
    r"png\.h": r"png_decoder\.cpp",
    r"zlib\.h": r"png_inspect\.cpp",
    r"(oneapi/)?tbb/.*": r"tbb_executor\.cpp",
    r"nlohmann/.*": r"transform_json\.cpp",
    r"simdjson\.h": r"trace_event\.cpp",
    r"liburing\.h": r"uring_ring\.cpp",
    r"device_kernel_image\.inc": r"device_kernel\.cpp",  # made by the build
    r"cuda.*": r"device_\w+\.(cpp|cu|h)",
    r"(immintrin|arm_neon)\.h": r"(resample_x86\.h|field_writer_vbmi\.cpp)",
}

POSIX = r"(sys/\w+|dirent|dlfcn|fcntl|poll|pthread|sched|signal|unistd)\.h"
STANDARD = r"[a-z_]+"

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:<([^>]+)>|"([^"]+)")', re.MULTILINE)
CPP_EXTENSIONS = {".h", ".cpp", ".cu"}


def includes(file: Path) -> Iterator[str]:
    for match in INCLUDE.finditer(file.read_text()):
        yield match[1] or match[2]


def stage_of(stem: str) -> str | None:
    return next((stage for stage, stems in STAGES.items() if stem in stems), None)


def complaint(root: Path, file: Path, include: str) -> str | None:
    """Why `file` must not include `include`, or None."""
    if re.match(r"(torch|ATen|c10|caffe2)/", include):
        return "C++ never includes torch"
    top = file.relative_to(root).parts[0]
    if top not in ("loader", "bindings") or re.fullmatch(STANDARD, include):
        return None
    public = include.startswith("headrace/")
    if top == "bindings":
        own = (file.parent / include).exists() or re.fullmatch(POSIX, include)
        allowed = own or public or include.startswith("pybind11/")
        return None if allowed else "bindings include pybind11 and the public headers only"
    if "include" in file.relative_to(root).parts:
        if not public:
            return "public headers include std and headrace only"
    elif not public and not (file.parent / include).exists():
        if re.fullmatch(POSIX, include):
            return None
        if any(re.fullmatch(k, include) and re.fullmatch(v, file.name) for k, v in OWNERS.items()):
            return None
        return "this library is not for this file"
    stage, other = stage_of(file.stem), stage_of(Path(include).stem)
    if stage in ("engine", other) or other in COMMON:
        return None
    if public and other in MAY_USE.get(stage, ()):
        return None
    return f"stage {stage} must not include stage {other}"


def violations(root: Path) -> list[str]:
    found = []
    for top in ("loader", "bindings", "tests", "bench", "examples"):
        for file in sorted((root / top).rglob("*")):
            if file.suffix not in CPP_EXTENSIONS:
                continue
            name = file.relative_to(root)
            if top == "loader" and stage_of(file.stem) is None:
                found.append(f"{name}: belongs to no stage; give it one in {Path(__file__).name}")
                continue
            for include in includes(file):
                if reason := complaint(root, file, include):
                    found.append(f"{name} includes {include}: {reason}")
    return found


def test_every_file_includes_only_what_its_place_allows() -> None:
    assert violations(ROOT) == []


def test_public_headers_export_what_they_declare() -> None:
    """Else it is hidden in the shared library."""
    for header in sorted((ROOT / "loader" / "include" / "headrace").glob("*.h")):
        spaces = re.findall(r"^namespace .*\bheadrace\b.*{", header.read_text(), re.MULTILINE)
        assert set(spaces) <= {"namespace HEADRACE_API headrace {"}, (
            f"{header.name}: write namespace HEADRACE_API headrace {{ and include headrace/api.h"
        )


@pytest.mark.parametrize(
    ("file", "line", "reason"),
    [
        ("loader/include/headrace/jpeg.h", "#include <jpeglib.h>", "public headers"),
        ("loader/include/headrace/source.h", '#include "reader.h"', "public headers"),
        ("loader/include/headrace/source.h", '#include "headrace/jpeg.h"', "stage source"),
        ("loader/src/jpeg_inspect.cpp", "#include <jpeglib.h>", "not for this file"),
        ("loader/src/jpeg_entropy.cpp", "#include <jpegint.h>", "not for this file"),
        ("loader/src/image_codec.cpp", "#include <png.h>", "not for this file"),
        ("loader/src/png_decoder.cpp", "#include <zlib.h>", "not for this file"),
        ("loader/src/engine.cpp", "#include <tbb/task_group.h>", "not for this file"),
        ("loader/src/engine.cpp", "#  include <oneapi/tbb.h>", "not for this file"),
        ("loader/src/transform.cpp", "#include <nlohmann/json.hpp>", "not for this file"),
        ("loader/src/pread_reader.cpp", "#include <liburing.h>", "not for this file"),
        ("loader/src/slot_ring.cpp", "#include <cuda.h>", "not for this file"),
        ("loader/src/slot_ring.cpp", '#include "reader.h"', "stage slot_ring"),
        ("loader/src/reader.h", '#include "headrace/jpeg.h"', "stage reader"),
        ("loader/src/plan_stream.cpp", '#include "resample.h"', "stage plan_stream"),
        ("loader/src/executor.h", '#include "headrace/engine.h"', "stage executor"),
        ("loader/src/novelty.cpp", "#include <vector>", "belongs to no stage"),
        ("bindings/bind_engine.cpp", '#include "slot_ring.h"', "bindings"),
        ("bindings/bind_engine.cpp", "#include <torch/extension.h>", "torch"),
        ("tests/cpp/test_engine.cpp", "#include <ATen/ATen.h>", "torch"),
    ],
)
def test_a_forbidden_include_is_reported(tmp_path: Path, file: str, line: str, reason: str) -> None:
    for name in (file, "loader/src/reader.h", "loader/src/resample.h"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("#pragma once\n")
    (tmp_path / file).write_text(f"{line}\n")
    (complaint,) = violations(tmp_path)
    assert complaint.startswith(file)
    assert reason in complaint
