"""Asks the installed torch, torchvision and Pillow whether the C++ core gives their bits.

Nothing about them is believed. At first use the random rules are measured, and raw draws, plans and
whole samples compared; each pipeline's own values are compared when it is first seen. A mismatch
sends everything to torch's path. A passed check is remembered on disk by versions and processor.
"""

import hashlib
import io
import json
import os
import platform
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import PIL
import PIL.features
import torch
import torchvision
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2

from headrace._core import Error, RandomStream, Transform, __version__
from headrace.output import Output
from headrace.recipe import ANY_PICTURES, NotNative, Pictures, steps_without_geometry, to_json
from headrace.settings import ProcessSettings

if TYPE_CHECKING:
    from headrace.collate import Mixing

# What the probes use. Each entry is compared with torch as it stands here: a wrong constant shows
# as a mismatch.
PROBES: dict[str, Any] = {
    "seeds": [0, 1, 0x1234_5678_9ABC_DEF0],
    "draws": 5000,
    "uniform": [(0.08, 1.0), (-0.28768208622932434, 0.28768208622932434), (0.0, 3.5)],
    # randint: one word below this range, two from it on.
    "wide_range": 1 << 28,
    "randint": [(0, 3), (0, 500), (-7, 1 << 20), (0, (1 << 28) - 1), (0, 1 << 28), (0, 1 << 40)],
    "sizes": [(500, 375), (333, 500), (64, 64), (1, 1), (1000, 10), (17, 4000)],
}


def random_rules() -> dict[str, Any]:
    """The arithmetic of this process's torch, as keyword arguments of RandomStream.

    Raises:
        NotNative: torch's draws follow no rule that is known here.
    """
    rules, problem = _probe()
    if problem is not None:
        raise NotNative("the self-check", problem)
    return rules


def check(
    recipe: str,
    transform: Callable[[Any], torch.Tensor],
    output: Output,
    pictures: Pictures = ANY_PICTURES,
) -> None:
    """Compares the core with the installed packages, in general and for this pipeline.

    Args:
        recipe: the pipeline as :func:`headrace.recipe.to_json` gives it.
        transform: the torchvision transform that it stands for.
        output: what is done to the images afterwards.
        pictures: what it is applied to.

    Raises:
        NotNative: something differs; the reason says what.
    """
    random_rules()
    problem = _compare_pipeline(recipe, transform, output, pictures)
    if problem is not None:
        raise NotNative("the self-check", problem)


# --- random draws -------------------------------------------------------------------------------

_probed: tuple[dict[str, Any], str | None] | None = None


def forget() -> None:
    """Makes the next use check again in this process."""
    global _probed
    _probed = None
    _compared.clear()


def _probe() -> tuple[dict[str, Any], str | None]:
    global _probed
    if _probed is None:
        with undisturbed():
            try:
                _probed = _probe_all()
            except Exception as error:
                _probed = {}, f"it failed: {error!r}"
    return _probed


@contextmanager
def undisturbed() -> Iterator[None]:
    """The user's settings don't disturb the check, nor does it disturb the user's generator."""
    saved = torch.get_rng_state()
    try:
        with ProcessSettings(load_truncated_images=False, max_image_pixels=None).applied():
            yield
    finally:
        torch.set_rng_state(saved)


def _seed(seed: int) -> None:
    # torch.manual_seed would seed the GPU's generators too, which nobody restores here.
    torch.default_generator.manual_seed(seed)


def _probe_all() -> tuple[dict[str, Any], str | None]:
    rules = {"fused_uniform": _uniform_is_fused(), "wide_range": PROBES["wide_range"]}
    remembered = _remembered(rules)
    if remembered is not None and os.path.exists(remembered):
        return rules, None
    problem = _compare_draws(rules) or _compare_samples(rules)
    if problem is None and remembered is not None:
        _remember(remembered)
    return rules, problem


def _uniform_is_fused() -> bool:
    low, high = PROBES["uniform"][0]
    _seed(PROBES["seeds"][0])
    wanted = _draws([torch.empty(1).uniform_(low, high) for _ in range(200)])
    return (
        RandomStream(PROBES["seeds"][0], fused_uniform=True).uniform_many(low, high, 200) == wanted
    )


def _draws(draws: list[torch.Tensor]) -> bytes:
    return _bytes(torch.cat(draws))


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()


def _compare_draws(rules: dict[str, Any]) -> str | None:
    count = PROBES["draws"]
    for seed in PROBES["seeds"]:
        _seed(seed)
        stream = RandomStream(seed, **rules)
        if stream.rand_many(count) != _draws([torch.rand(1) for _ in range(count)]):
            return "torch.rand gives other numbers than the native stream"
        for low, high in PROBES["uniform"]:
            wanted = _draws([torch.empty(1).uniform_(low, high) for _ in range(count)])
            if stream.uniform_many(low, high, count) != wanted:
                return f"uniform_({low}, {high}) gives other numbers than the native stream"
        for low, high in PROBES["randint"]:
            wanted = _draws([torch.randint(low, high, (1,)) for _ in range(200)])
            if stream.randint_many(low, high, 200) != wanted:
                return f"torch.randint({low}, {high}) gives other numbers than the native stream"
        if not stream.same_position(stream_of(torch.get_rng_state(), rules)):
            return "torch's generator state is not laid out as expected"
        state = torch.get_rng_state()
        stream.rand_many(1000)
        stream.to_torch_state(state.numpy())
        torch.set_rng_state(state)
        if _draws([torch.rand(1)]) != stream.rand_many(1):
            return "a state written back to torch does not continue the stream"
    return None


def stream_of(state: torch.Tensor, rules: dict[str, Any]) -> RandomStream:
    """The native stream that continues `state` (torch.get_rng_state())."""
    return RandomStream.from_torch_state(state.numpy(), **rules)


# --- plans and pixels ---------------------------------------------------------------------------


def _compare_samples(rules: dict[str, Any]) -> str | None:
    """Whole samples through typical pipelines of both versions and every filter."""
    for pipeline in _typical_pipelines():
        recipe = to_json(pipeline)
        native = Transform(recipe)
        for number, size in enumerate(PROBES["sizes"]):
            image = _picture(size, number)
            _seed(number)
            stream = RandomStream(number, **rules)
            wanted = pipeline(image)
            width, height = size
            _, doubt = native.plan(width, height, stream.copy())
            if doubt:
                continue
            if native.run(width, height, image.tobytes(), stream) != _bytes(wanted):
                return f"pixels of a {size[0]}x{size[1]} image differ after {pipeline!r}"
            if not stream.same_position(stream_of(torch.get_rng_state(), rules)):
                return f"the random stream stands elsewhere after {pipeline!r}"
    return _compare_files(rules)


def _typical_pipelines() -> list[Any]:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    modes = v1.InterpolationMode
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            v1.Compose(
                [
                    v1.RandomResizedCrop(56),
                    v1.RandomHorizontalFlip(),
                    v1.ToTensor(),
                    v1.Normalize(mean, std),
                ]
            ),
            v2.Compose(
                [
                    v2.RandomResizedCrop((40, 70), interpolation=modes.BICUBIC),
                    v2.RandomHorizontalFlip(0.3),
                    v2.ToImage(),
                    v2.ToDtype(torch.float32, scale=True),
                    v2.Normalize(mean, std),
                ]
            ),
            v1.Compose([v1.Resize(48), v1.CenterCrop(64), v1.PILToTensor()]),
            # Here the order of Pillow's two passes shows.
            v1.Compose([v1.Resize((20, 70)), v1.PILToTensor()]),
            v2.Compose([v2.Resize((30, 90), modes.NEAREST), v2.CenterCrop(33), v2.PILToTensor()]),
            v1.Compose(
                [
                    v1.RandomCrop(40, (3, 5, 7, 2), pad_if_needed=True, fill=(9, 8, 7)),
                    v1.RandomVerticalFlip(),
                    v1.RandomGrayscale(0.7),
                    v1.PILToTensor(),
                ]
            ),
            v2.Compose(
                [
                    v2.RandomCrop((64, 50), 9, pad_if_needed=True, padding_mode="reflect"),
                    v2.RandomVerticalFlip(),
                    v2.ToImage(),
                ]
            ),
            # In this order of padding, too.
            v1.Compose(
                [
                    v1.RandomCrop((64, 50), 9, pad_if_needed=True, padding_mode="symmetric"),
                    v1.PILToTensor(),
                ]
            ),
        ]


def _picture(size: tuple[int, int], seed: int) -> Image.Image:
    """A smooth pattern with noise, so that filters and clipping have something to do."""
    width, height = size
    generator = torch.Generator().manual_seed(seed)
    x = torch.arange(width).view(1, width, 1) / max(width, 2)
    y = torch.arange(height).view(height, 1, 1) / max(height, 2)
    phase = torch.rand(1, 1, 3, generator=generator) * 6
    waves = 140 * torch.sin(7 * x + 5 * y + phase) + 128
    noise = 60 * torch.randn(height, width, 3, generator=generator)
    return Image.fromarray((waves + noise).clamp(0, 255).to(torch.uint8).numpy())


def _compare_files(rules: dict[str, Any]) -> str | None:
    """Decoding, of every kind of file that the core takes on."""
    pipeline = v1.Compose([v1.Resize((61, 83)), v1.PILToTensor()])
    native = Transform(to_json(pipeline))
    for kind, file in (*_jpeg_files(), *_png_files()):
        wanted = _bytes(pipeline(Image.open(io.BytesIO(file)).convert("RGB")))
        try:
            found = native.apply(file, RandomStream(0, **rules))
        except Error:
            continue  # a doubt: Pillow would decode it
        if found != wanted:
            return f"a decoded file has other pixels: {kind}"
    return None


def _jpeg_files() -> Iterator[tuple[str, bytes]]:
    """Every subsampling, gray and CMYK, baseline and progressive."""
    for mode in ("RGB", "L", "CMYK"):
        for subsampling in (0, 1, 2):
            for progressive in (False, True):
                options = {"quality": 85, "subsampling": subsampling, "progressive": progressive}
                picture = _picture((83, 61), subsampling).convert(mode)
                yield f"{mode} JPEG, {options}", _file(picture, "JPEG", **options)


def _png_files() -> Iterator[tuple[str, bytes]]:
    """Every mode that Pillow writes and we read, with and without a transparent color."""
    color = {"L": 7, "P": 3, "RGB": (1, 2, 3)}
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA"):
        picture = _picture((83, 61), 4).convert(mode)
        yield f"{mode} PNG", _file(picture, "PNG")
        if mode in color:
            yield f"{mode} PNG, transparency", _file(picture, "PNG", transparency=color[mode])


def _file(picture: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


# --- one pipeline -------------------------------------------------------------------------------


_compared: dict[str, str | None] = {}


def _compare_pipeline(
    recipe: str, transform: Callable[[Any], torch.Tensor], output: Output, pictures: Pictures
) -> str | None:
    """The user's own pipeline on images, and all 256 values of each channel through its table."""
    if recipe not in _compared:
        with undisturbed():
            try:
                _compared[recipe] = _compare_sizes(
                    recipe, transform, output, pictures
                ) or _compare_values(transform, output, pictures.mode)
            except Exception as error:
                _compared[recipe] = f"{transform!r} fails on an image: {error!r}"
    return _compared[recipe]


def _compare_sizes(
    recipe: str, transform: Callable[[Any], Any], output: Output, pictures: Pictures
) -> str | None:
    width, height = Transform(recipe).output[2][:0:-1]
    sizes = [(width + 9, height + 5), (max(width - 3, 1), max(height - 2, 1))]
    for size in sizes if pictures.size is None else [pictures.size]:
        problem = _compare_on(recipe, transform, output, _ramp(pictures.mode, size))
        if problem is not None:
            return problem
    return None


def _compare_values(transform: Callable[[Any], Any], output: Output, mode: str) -> str | None:
    steps = v1.Compose([v1.Resize((16, 16)), *steps_without_geometry(transform)])
    recipe = to_json(steps, output, Pictures(mode))
    images = [_ramp(mode, (16, 16)), _ramp("L", (16, 16)).convert(mode)]  # the second for grays
    for image in images:
        problem = _compare_on(recipe, steps, output, image)
        if problem is not None:
            return problem
    return None


def _ramp(mode: str, size: tuple[int, int]) -> Image.Image:
    """All values in turn. Each channel starts elsewhere, so that swapped channels would show."""
    width, height = size
    values = torch.arange(width * height).view(height, width)
    if mode == "RGB":
        values = torch.stack([values, values + 85, values + 170], dim=2)
    return Image.fromarray((values % 256).to(torch.uint8).numpy())


def _compare_on(
    recipe: str, transform: Callable[[Any], Any], output: Output, image: Image.Image
) -> str | None:
    rules, _ = _probe()
    native = Transform(recipe)
    rgb = image.convert("RGB").tobytes()
    for seed in PROBES["seeds"]:
        _seed(seed)
        stream = RandomStream(seed, **rules)
        _, doubt = native.plan(*image.size, stream.copy())
        if doubt:
            continue
        if native.run(*image.size, rgb, stream) != _bytes(output.row(transform(image))):
            return f"values differ after {transform!r}"
        if not stream.same_position(stream_of(torch.get_rng_state(), rules)):
            return f"the random stream stands elsewhere after {transform!r}"
    return None


# --- collate functions --------------------------------------------------------------------------


def check_mixing(mixing: "Mixing") -> None:
    """Compares the draws that a collate function makes without data with those of real batches.

    Raises:
        NotNative: something differs; the reason says what.
    """
    key = mixing.key
    if _compared_mixing is None or _compared_mixing[0] != key:
        _compare_mixing(mixing, key)
    assert _compared_mixing is not None
    problem = _compared_mixing[2]
    if problem is not None:
        raise NotNative("the self-check", problem)


# The latest: its key, its transform (whose id stands in the key), and what differs.
_compared_mixing: tuple[Any, Any, str | None] | None = None


def _compare_mixing(mixing: "Mixing", key: Any) -> None:
    global _compared_mixing
    problem = None
    shape = (5, 3, 20, 30)
    with undisturbed():
        for seed in range(8):
            _seed(seed)
            with suppress(Exception):  # such as labels that are out of range
                mixing([torch.zeros(shape), torch.zeros(shape[0], dtype=torch.int64)])
            expected = torch.get_rng_state()
            _seed(seed)
            with suppress(Exception):
                mixing.draw(shape, torch.float32)
            if not torch.equal(torch.get_rng_state(), expected):
                problem = f"{mixing.transform!r} draws otherwise without data"
    _compared_mixing = key, mixing.transform, problem


# --- memory of passed checks --------------------------------------------------------------------


def _remembered(rules: dict[str, Any]) -> Path | None:
    """The file whose presence says that this very combination has passed."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(base):
        return None
    combination = {
        "headrace": __version__,
        "core": _core_fingerprint(),
        "probes": PROBES,
        "rules": rules,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "pillow": PIL.__version__,
        "libjpeg": PIL.features.version_feature("libjpeg_turbo"),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "processor": _processor(),
    }
    key = hashlib.sha256(json.dumps(combination, sort_keys=True).encode()).hexdigest()
    return Path(base) / "headrace" / f"selfcheck-{key[:32]}"


def _core_fingerprint() -> str:
    """Tells builds of one version apart."""
    from headrace import _core

    status = os.stat(_core.__file__)
    return f"{status.st_size}-{status.st_mtime_ns}"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as info:
            return next((line for line in info if line.startswith("model name")), "")
    except OSError:
        return platform.machine()


def _remember(file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    except OSError:
        pass  # a read-only home costs the check again next time, and nothing else
