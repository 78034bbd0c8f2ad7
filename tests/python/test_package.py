"""The C++ package: installed, found by programs in directories of their own, and right."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import headrace
import support
from headrace._core import RandomStream, SampleKey

ROOT = Path(__file__).resolve().parents[2]
KINDS = ["static", "shared"]

pytestmark = pytest.mark.timeout(600)  # it compiles


def run(*command: Any, **environment: str) -> str:
    """What the command prints; its errors with the test's."""
    done = subprocess.run(
        [str(word) for word in command],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
    return done.stdout


def cmake(source: Path, build: Path, *definitions: str) -> None:
    run("cmake", "-S", source, "-B", build, "-G", "Ninja", *(f"-D{one}" for one in definitions))
    run("cmake", "--build", build)


@pytest.fixture(scope="module")
def prefixes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Where the library is installed, static and shared.

    Compiled as the C++ tests are and beside them, so that ccache has the objects.
    """
    places = {}
    for kind in KINDS:
        build = ROOT / "build" / f"package_{kind}"
        places[kind] = tmp_path_factory.mktemp(f"installed_{kind}") / "moved"
        cmake(
            ROOT,
            build,
            "CMAKE_BUILD_TYPE=Release",
            "CMAKE_INSTALL_LIBDIR=lib",
            "HEADRACE_WERROR=ON",
            "HEADRACE_TESTS=OFF",
            f"BUILD_SHARED_LIBS={'ON' if kind == 'shared' else 'OFF'}",
        )
        run("cmake", "--install", build, "--prefix", places[kind].with_name("first"))
        places[kind].with_name("first").rename(places[kind])
    return places


@pytest.fixture(scope="module")
def programs(
    prefixes: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], Path]:
    """The examples by library and name, built from a copy that knows nothing of this tree."""
    built = {}
    for kind, prefix in prefixes.items():
        for name in ("folder", "serve"):
            here = tmp_path_factory.mktemp(f"{name}_{kind}")
            shutil.copytree(ROOT / "examples" / "cpp" / name, here / "source")
            cmake(here / "source", here / "build", f"CMAKE_PREFIX_PATH={prefix}")
            built[kind, name] = here / "build" / name
    return built


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return support.write_folder(tmp_path_factory.mktemp("folder"), support.good_files())


def converted(dtype: torch.dtype) -> Any:
    steps = [v2.RandomResizedCrop(32, antialias=True), v2.ToImage(), v2.ToDtype(dtype, scale=True)]
    return v2.Compose(steps)


SERVED = [
    support.evaluation(),
    support.train(),
    support.train_v2_uint8(),
    converted(torch.float16),
    converted(torch.bfloat16),
]


def check_serving(program: Path, folder: Path, tmp_path: Path, **environment: str) -> None:
    """The program's field is what torchvision makes of the same picture and seed."""
    pictures = [path for path, _ in ImageFolder(str(folder)).samples]
    recipe = tmp_path / "transform.json"
    for seed, transform in enumerate(SERVED):
        recipe.write_text(headrace.transform_to_json(transform))
        for path in pictures[seed::5]:
            torch.manual_seed(seed)
            with Image.open(path) as image:
                expected = transform(image.convert("RGB"))
            done = subprocess.run(
                [program, recipe, path, str(seed)],
                env=os.environ | environment,
                capture_output=True,
                timeout=60,
            )
            assert done.returncode == 0, done.stderr
            assert done.stderr.split()[1:] == [b"%d" % n for n in expected.shape]
            assert done.stdout == bytes(expected.contiguous().view(torch.uint8).numpy())


@pytest.mark.parametrize("kind", KINDS)
def test_a_serving_program_gives_torchvisions_bits(
    programs: dict[tuple[str, str], Path], folder: Path, tmp_path: Path, kind: str
) -> None:
    check_serving(programs[kind, "serve"], folder, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_pkg_config_is_enough_for_a_program(
    prefixes: dict[str, Path], folder: Path, tmp_path: Path, kind: str
) -> None:
    libraries = prefixes[kind] / "lib"
    ask = ["pkg-config", "--cflags", "--libs", *(["--static"] if kind == "static" else [])]
    flags = run(*ask, "headrace", PKG_CONFIG_PATH=str(libraries / "pkgconfig")).split()
    source = ROOT / "examples" / "cpp" / "serve" / "serve.cpp"
    run("c++", "-std=c++20", source, "-o", tmp_path / "serve", *flags)
    check_serving(tmp_path / "serve", folder, tmp_path, LD_LIBRARY_PATH=str(libraries))


def test_a_serving_program_refuses_what_it_cannot_judge(
    programs: dict[tuple[str, str], Path], tmp_path: Path
) -> None:
    recipe, image = tmp_path / "transform.json", tmp_path / "cut.jpg"
    recipe.write_text(headrace.transform_to_json(support.evaluation()))
    image.write_bytes(support.jpeg((40, 30), 1)[:-20])
    done = subprocess.run(
        [programs["static", "serve"], recipe, image], capture_output=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stdout == b""
    assert b"serve: decode: " in done.stderr


def mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def shuffled(size: int, seed: int, epoch: int) -> list[int]:
    """As headrace/order.h describes it."""
    key = mix(mix(seed) ^ epoch)
    order = list(range(size))
    for step in range(128):
        pivot = mix(key ^ (2 * step)) % size
        for position, x in enumerate(order):
            partner = (pivot - x) % size
            if mix(mix(key ^ (2 * step + 1)) ^ max(x, partner)) & 1:
                order[position] = partner
    return order


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_over_a_folder_gives_torchvisions_bits(
    programs: dict[tuple[str, str], Path], folder: Path, kind: str
) -> None:
    out = run(programs[kind, "folder"], folder, 2).splitlines()
    dataset = ImageFolder(str(folder), support.train(224))
    classes = " ".join(dataset.classes)
    version = headrace.__version__
    assert out[0] == f"headrace {version}: {len(dataset)} images, 3 classes: {classes}"
    for epoch, line in enumerate(out[1:]):
        checksum = 0xCBF29CE484222325
        for index in shuffled(len(dataset), 1, epoch):
            state = torch.get_rng_state()
            RandomStream.of_sample(SampleKey(1, epoch, index)).to_torch_state(state.numpy())
            torch.set_rng_state(state)
            for bits in dataset[index][0].view(torch.int32).flatten().tolist():
                checksum = (checksum ^ (bits % 2**32)) * 0x100000001B3 % 2**64
        expected = rf"epoch {epoch}: {len(dataset)} images, \d+ images/s, checksum {checksum:016x}"
        assert re.fullmatch(expected, line)
    assert len(out) == 3


@pytest.mark.parametrize(("asked", "found"), [("0.1", True), ("0.2", False), ("1.0", False)])
def test_find_package_follows_semantic_versioning(
    prefixes: dict[str, Path], tmp_path: Path, asked: str, found: bool
) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(asks LANGUAGES CXX)\n"
        f'find_package(headrace {asked} CONFIG)\nmessage(STATUS "found: ${{headrace_FOUND}}")\n'
    )
    where = f"-DCMAKE_PREFIX_PATH={prefixes['shared']}"
    said = run("cmake", "-S", tmp_path, "-B", tmp_path / "build", where)
    assert f"found: {int(found)}" in said


def test_a_project_may_take_headrace_in_as_a_subdirectory(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(ROOT / "examples" / "cpp" / "serve", source)
    text = (source / "CMakeLists.txt").read_text()
    find = "find_package(headrace 0.1 CONFIG REQUIRED)"
    assert find in text
    (source / "CMakeLists.txt").write_text(text.replace(find, f"add_subdirectory({ROOT} headrace)"))
    run("cmake", "-S", source, "-B", tmp_path / "build", "-G", "Ninja")
    run("cmake", "--install", tmp_path / "build", "--prefix", tmp_path / "installed")
    targets = run("cmake", "--build", tmp_path / "build", "--target", "help")
    assert "libheadrace.a" in targets and not re.search(r"\b(test|bench)_\w+: ", targets)
    assert not (tmp_path / "installed").exists(), "another project's install brings headrace along"


def test_the_shared_library_shows_its_public_names_alone(prefixes: dict[str, Path]) -> None:
    library = prefixes["shared"] / "lib" / "libheadrace.so"
    names = re.findall(r"^\w+ T (.*)$", run("nm", "-DC", library), re.MULTILINE)
    assert "headrace::version()" in names
    for name in names:
        assert "headrace::" in name, name
        assert not re.match(r"headrace::(SlotRing|PlanStream|make_executor|mix)\b", name)


def test_python_installs_no_headers() -> None:
    try:
        files = importlib.metadata.files("headrace") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("headrace is not installed here")
    assert [one for one in files if one.suffix in (".h", ".a", ".cmake", ".pc")] == []


def test_a_transform_without_native_form_names_the_step() -> None:
    with pytest.raises(ValueError, match=r"ColorJitter\(.*no native form"):
        headrace.transform_to_json(v1.Compose([v1.ColorJitter(0.4), v1.ToTensor()]))
    with pytest.raises(ValueError, match="Resize"):
        headrace.transform_to_json(v1.Compose([v1.Resize(20), v1.ToTensor()]))


def test_the_json_of_a_transform_is_that_of_the_headers() -> None:
    recipe = json.loads(headrace.transform_to_json(support.evaluation()))
    assert recipe["headrace"] == 1
    assert [op["op"] for op in recipe["ops"]] == ["resize", "center_crop", "to_tensor", "normalize"]
