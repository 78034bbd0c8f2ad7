"""The native Transform against torchvision on PIL images: plans and pixels, bit for bit."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from PIL import Image
from torchvision.transforms import InterpolationMode, v2

from headrace._core import Error, RandomStream, Transform
from headrace.recipe import Pictures, resize_passes, to_json

FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
LOG_RATIO = torch.log(torch.tensor((3 / 4, 4 / 3))).tolist()


def find_fused_uniform() -> bool:
    torch.manual_seed(1)
    expected = torch.empty(10_000).uniform_(*LOG_RATIO).numpy().tobytes()
    return RandomStream(1, fused_uniform=True).uniform_many(*LOG_RATIO, 10_000) == expected


FUSED = find_fused_uniform()


def stream_of_torch() -> RandomStream:
    return RandomStream.from_torch_state(torch.get_rng_state().numpy(), fused_uniform=FUSED)


def native(*ops: dict[str, Any]) -> Transform:
    return Transform(json.dumps({"headrace": 1, "resize_passes": PASSES, "ops": ops}))


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


PASSES = resize_passes()


def run(transform: Transform, image: Image.Image, stream: RandomStream) -> torch.Tensor:
    _, dtype, shape = transform.output
    data = bytearray(transform.run(*image.size, image.tobytes(), stream))
    return torch.frombuffer(data, dtype=getattr(torch, dtype)).view(shape)


def assert_same_bits(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    found, expected = (one.contiguous().view(torch.uint8) for one in (found, expected))
    assert torch.equal(found, expected)


# --- plans -------------------------------------------------------------------------------------


def v1_params(op: v1.RandomResizedCrop, image: torch.Tensor) -> tuple[int, int, int, int]:
    top, left, height, width = op.get_params(image, op.scale, op.ratio)
    return left, top, width, height


def v2_params(op: v2.RandomResizedCrop, image: torch.Tensor) -> tuple[int, int, int, int]:
    params = op.make_params([image])
    return params["left"], params["top"], params["width"], params["height"]


@pytest.mark.parametrize(
    ("scale", "ratio"),
    [
        ((0.08, 1.0), (3 / 4, 4 / 3)),
        ((0.9, 1.3), (0.5, 0.8)),  # falls back to a central crop often
        ((0.0, 0.02), (0.2, 9.0)),
        ((0.25, 0.25), (1.0, 1.0)),
    ],
)
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_twenty_thousand_random_crops_equal_torchvision(
    version: str, scale: tuple[float, float], ratio: tuple[float, float]
) -> None:
    cls, params = (
        (v1.RandomResizedCrop, v1_params) if version == "v1" else (v2.RandomResizedCrop, v2_params)
    )
    theirs = cls(10, scale=scale, ratio=ratio)
    ours = native(
        {
            "op": "random_resized_crop",
            "size": [10, 10],
            "scale": scale,
            "ratio": ratio,
            "log_ratio": torch.log(torch.tensor(ratio)).tolist(),
        },
        {"op": "to_tensor"},
    )
    count, doubts = 20_000, 0
    sizes = np.exp(np.random.default_rng(21).uniform(0, np.log(4000), (count, 2))).astype(int)
    torch.manual_seed(21)
    stream = stream_of_torch()
    for width, height in sizes.tolist():
        expected = params(theirs, torch.empty(1).expand(3, height, width))
        steps, doubt = ours.plan(width, height, stream)
        if doubt:
            doubts += 1
            stream = stream_of_torch()
            continue
        assert steps == [("source", *expected), ("resize", 10, 10, "bilinear")]
    assert stream.same_position(stream_of_torch())
    # Doubts are for the last bit of torch.exp; sizes between two pixels make them frequent.
    assert doubts < count / (20 if scale[0] in (0.0, 0.25) else 1000)


@pytest.mark.parametrize(("edge", "max_size"), [(1, None), (7, 9), (224, None), (224, 300)])
def test_resize_of_the_shorter_edge_gives_torchvisions_sizes(
    edge: int, max_size: int | None
) -> None:
    ours = native(
        {"op": "resize", "size": edge, "max_size": max_size},
        {"op": "center_crop", "size": [1, 1]},
        {"op": "to_tensor"},
    )
    stream = RandomStream(0)
    sizes = np.exp(np.random.default_rng(22).uniform(0, np.log(4000), (5_000, 2))).astype(int)
    for width, height in sizes.tolist():
        expected = v2.functional._geometry._compute_resized_output_size(
            (height, width), [edge], max_size
        )
        steps, doubt = ours.plan(width, height, stream)
        if 0 in expected:
            assert "without pixels" in doubt
        elif expected[0] * expected[1] > 89_478_485:
            assert "too large" in doubt
        else:
            assert steps[1] == ("resize", expected[1], expected[0], "bilinear")


@pytest.mark.parametrize("p", [0.0, 0.3, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("flip", [v1.RandomHorizontalFlip, v2.RandomHorizontalFlip])
def test_flips_happen_when_torchvision_flips(flip: Callable[..., Any], p: float) -> None:
    ours = native(
        {"op": "center_crop", "size": [1, 2]},
        {"op": "random_horizontal_flip", "p": p},
        {"op": "to_tensor"},
    )
    theirs = flip(p)
    image = torch.tensor([[[0, 1]]])
    torch.manual_seed(23)
    stream = stream_of_torch()
    for _ in range(2_000):
        flipped = theirs(image)[0, 0, 0].item() == 1
        steps, _ = ours.plan(2, 1, stream)
        assert (("horizontal_flip",) in steps) == flipped


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("api", [v1, v2])
def test_thousands_of_padded_crops_equal_torchvision(api: Any, mode: str) -> None:
    rng = np.random.default_rng(24)
    torch.manual_seed(24)
    stream = stream_of_torch()
    doubts = 0
    for _ in range(60):
        padding = rng.integers(0, 5, 4).tolist()
        theirs = api.Compose(
            [
                api.RandomCrop(
                    tuple(rng.integers(1, 14, 2).tolist()),
                    padding=[None, padding[0], padding[:1], padding[:2], padding][rng.integers(5)],
                    pad_if_needed=bool(rng.integers(2)),
                    fill=[7, (1, 2, 3)][rng.integers(2)],
                    padding_mode=mode,
                ),
                api.PILToTensor(),
            ]
        )
        ours = Transform(to_json(theirs))
        for index in range(42):
            image = noise(*rng.integers(1, 16, 2).tolist(), index)
            _, doubt = ours.plan(*image.size, stream.copy())
            try:
                expected = theirs(image)
            except ValueError as error:
                assert "larger than" in str(error)
                assert doubt
                continue
            if doubt:
                assert "mirror" in doubt
                doubts += 1
                stream = stream_of_torch()
                continue
            assert_same_bits(run(ours, image, stream), expected)
        assert stream.same_position(stream_of_torch())
    assert doubts == 0 or mode in ("reflect", "symmetric")


def stream_whose_next_rand_is(value: float) -> torch.Tensor:
    """A torch state whose next rand(1) is `value`: 24 bits of an otherwise arbitrary word."""
    word = int(value * 2**24)
    # Undo the tempering, last step first.
    word ^= word >> 18
    word ^= (word << 15) & 0xEFC60000
    untempered = word
    for _ in range(5):
        untempered = word ^ ((untempered << 7) & 0x9D2C5680)
    word = untempered & 0xFFFFFFFF
    untempered = word
    for _ in range(3):
        untempered = word ^ (untempered >> 11)
    state = torch.get_rng_state()
    raw = state.numpy()
    raw[8:24] = np.frombuffer(struct.pack("<iiQ", 624, 1, 1), np.uint8)
    raw[32:40] = np.frombuffer(struct.pack("<Q", untempered), np.uint8)
    return state


@pytest.mark.parametrize("p", [0.3, 0.7, 0.1, 0.5, 1 / 3])
@pytest.mark.parametrize("steps_away", [-1, 0, 1])
def test_flip_compares_in_float32_at_the_very_edge(p: float, steps_away: int) -> None:
    edge = float(np.round(np.float32(p) * 2**24) / 2**24) + steps_away * 2**-24
    state = stream_whose_next_rand_is(edge)
    torch.set_rng_state(state)
    assert torch.rand(1).item() == edge
    image = torch.tensor([[[0, 1]]])
    ours = native(
        {"op": "center_crop", "size": [1, 2]},
        {"op": "random_horizontal_flip", "p": p},
        {"op": "to_tensor"},
    )
    for flip in (v1.RandomHorizontalFlip, v2.RandomHorizontalFlip):
        torch.set_rng_state(state)
        flipped = flip(p)(image)[0, 0, 0].item() == 1
        steps, _ = ours.plan(2, 1, RandomStream.from_torch_state(state.numpy()))
        assert (("horizontal_flip",) in steps) == flipped


# --- pixels ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILTERS)
def test_resize_equals_pillow_at_random_sizes(name: str) -> None:
    rng = np.random.default_rng(31)
    stream = RandomStream(0)
    for index in range(120):
        width, height, new_width, new_height = rng.integers(1, 601, 4).tolist()
        image = noise(width, height, index)
        ours = native(
            {"op": "resize", "size": [new_height, new_width], "interpolation": name},
            {"op": "pil_to_tensor"},
        )
        expected = v1.functional.pil_to_tensor(image.resize((new_width, new_height), FILTERS[name]))
        assert_same_bits(run(ours, image, stream), expected)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize(
    ("size", "new_size"),
    [
        ((1, 1), (600, 600)),
        ((600, 600), (1, 1)),
        ((3000, 1), (7, 5)),
        ((1, 3000), (5, 7)),
        ((2, 3000), (2999, 1)),
        ((5, 4), (5, 300)),
        ((5, 4), (300, 4)),
        ((300, 200), (300, 7)),
        ((300, 200), (7, 200)),
        ((300, 200), (300, 200)),
        ((4000, 3), (3999, 3)),
        ((49, 98), (7000, 3)),
        ((100, 300), (90, 279)),
        ((100, 300), (90, 280)),
    ],
)
def test_resize_equals_pillow_at_extreme_sizes(
    name: str, size: tuple[int, int], new_size: tuple[int, int]
) -> None:
    image = noise(*size)
    ours = native(
        {"op": "resize", "size": new_size[::-1], "interpolation": name}, {"op": "pil_to_tensor"}
    )
    expected = v1.functional.pil_to_tensor(image.resize(new_size, FILTERS[name]))
    assert_same_bits(run(ours, image, RandomStream(0)), expected)


def test_nearest_positions_equal_pillows_for_many_lengths() -> None:
    image = noise(777, 1)
    stream = RandomStream(0)
    for width in [*range(1, 1000), 4567, 31_007, 65_535]:
        ours = native(
            {"op": "resize", "size": [1, width], "interpolation": "nearest"},
            {"op": "pil_to_tensor"},
        )
        expected = v1.functional.pil_to_tensor(image.resize((width, 1), Image.Resampling.NEAREST))
        assert_same_bits(run(ours, image, stream), expected)


BICUBIC = InterpolationMode.BICUBIC
FLOAT = {"op": "to_dtype", "dtype": "float32", "scale": True}
BYTES = {"op": "to_dtype", "dtype": "uint8", "scale": True}
NORMALIZE = {"op": "normalize", "mean": MEAN, "std": STD}
FLIP = {"op": "random_horizontal_flip"}
CROP = {"op": "random_resized_crop", "size": [64, 48], "log_ratio": LOG_RATIO}

PIPELINES: dict[str, tuple[list[Callable[..., Any]], list[dict[str, Any]]]] = {
    "v1 training": (
        [
            v1.RandomResizedCrop((64, 48)),
            v1.RandomHorizontalFlip(),
            v1.ToTensor(),
            v1.Normalize(MEAN, STD),
        ],
        [CROP, FLIP, {"op": "to_tensor"}, NORMALIZE],
    ),
    "v1 evaluation": (
        [v1.Resize(72), v1.CenterCrop(64), v1.ToTensor(), v1.Normalize([0.5], [0.25])],
        [
            {"op": "resize", "size": 72},
            {"op": "center_crop", "size": [64, 64]},
            {"op": "to_tensor"},
            {"op": "normalize", "mean": [0.5], "std": [0.25]},
        ],
    ),
    "v1 crop larger than the image": (
        [v1.CenterCrop((301, 200)), v1.PILToTensor()],
        [{"op": "center_crop", "size": [301, 200]}, {"op": "pil_to_tensor"}],
    ),
    "v1 many steps": (
        [
            v1.RandomHorizontalFlip(0.7),
            v1.Resize(90, max_size=130, interpolation=BICUBIC),
            v1.CenterCrop((97, 95)),
            v1.RandomHorizontalFlip(0.3),
            v1.RandomResizedCrop((50, 70), (0.3, 0.9), (0.5, 2), InterpolationMode.NEAREST),
            v1.Resize((33, 120)),
            v1.PILToTensor(),
            v1.RandomHorizontalFlip(),
        ],
        [
            {"op": "random_horizontal_flip", "p": 0.7},
            {"op": "resize", "size": 90, "max_size": 130, "interpolation": "bicubic"},
            {"op": "center_crop", "size": [97, 95]},
            {"op": "random_horizontal_flip", "p": 0.3},
            {
                "op": "random_resized_crop",
                "size": [50, 70],
                "scale": [0.3, 0.9],
                "ratio": [0.5, 2],
                "interpolation": "nearest",
                "log_ratio": torch.log(torch.tensor((0.5, 2))).tolist(),
            },
            {"op": "resize", "size": [33, 120]},
            {"op": "pil_to_tensor"},
            FLIP,
        ],
    ),
    "v2 training": (
        [
            v2.RandomResizedCrop((64, 48), interpolation=BICUBIC),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ],
        [{**CROP, "interpolation": "bicubic"}, FLIP, {"op": "to_image"}, FLOAT, NORMALIZE],
    ),
    "v2 flip of a float tensor": (
        [
            v2.RandomResizedCrop((64, 48)),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32),
            v2.RandomHorizontalFlip(),
            v2.Normalize([3], STD),
        ],
        [
            CROP,
            {"op": "pil_to_tensor"},
            {"op": "to_dtype", "dtype": "float32"},
            FLIP,
            {"op": "normalize", "mean": [3], "std": STD},
        ],
    ),
    "v1 padding everywhere": (
        [
            v1.Pad((3, 0, 2, 40), fill=(1, 2, 3)),
            v1.RandomHorizontalFlip(),
            v1.Pad((0, 5), padding_mode="edge"),
            v1.RandomVerticalFlip(),
            v1.Resize((90, 80)),
            v1.Pad(7, padding_mode="symmetric"),
            v1.RandomCrop((91, 60)),
            v1.RandomVerticalFlip(),
            v1.ToTensor(),
            v1.RandomCrop((90, 70), 6),
            v1.RandomVerticalFlip(),
            v1.Normalize(MEAN, STD),
            v1.Pad((1, 2), padding_mode="reflect"),
            v1.RandomHorizontalFlip(),
        ],
        [],
    ),
    "v2 padding everywhere": (
        [
            v2.RandomCrop(70, pad_if_needed=True, fill=200),
            v2.Resize(60, interpolation=BICUBIC),
            v2.RandomVerticalFlip(0.7),
            v2.RandomCrop((64, 50), (2, 3, 4, 5), padding_mode="reflect"),
            v2.ToImage(),
            v2.Pad((1, 2, 0, 3), fill=(3, 0, 255)),
            v2.RandomVerticalFlip(),
            v2.RandomCrop((60, 40), padding=3, padding_mode="symmetric"),
            v2.ToDtype(torch.float32, scale=True),
            v2.RandomCrop(48, padding=8),
            v2.RandomHorizontalFlip(),
        ],
        [],
    ),
    "v2 there and back": (
        [
            v2.CenterCrop(150),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.ToDtype(torch.uint8, scale=True),
            v2.ToDtype(torch.uint8),
        ],
        [{"op": "center_crop", "size": [150, 150]}, {"op": "to_image"}, FLOAT, BYTES, BYTES],
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PIPELINES)
def test_whole_pipelines_equal_torchvision(name: str) -> None:
    operations, ops = PIPELINES[name]
    theirs = (v1 if name.startswith("v1") else v2).Compose(operations)
    ours = native(*ops) if ops else Transform(to_json(theirs))
    rng = np.random.default_rng(41)
    torch.manual_seed(41)
    stream = stream_of_torch()
    for index in range(50):
        image = noise(*rng.integers(20, 401, 2).tolist(), index)
        expected = theirs(image).as_subclass(torch.Tensor)
        assert_same_bits(run(ours, image, stream), expected)
        assert stream.same_position(stream_of_torch())


VALUE_OPS: dict[str, tuple[list[Callable[..., Any]], list[dict[str, Any]]]] = {
    "to_tensor": ([v1.ToTensor()], [{"op": "to_tensor"}]),
    "scaled": ([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)], [{"op": "to_image"}, FLOAT]),
    "to_tensor and back": (
        [v2.functional.to_tensor, v2.ToDtype(torch.uint8, scale=True)],
        [{"op": "to_tensor"}, BYTES],
    ),
    "truncated": (
        [v2.ToImage(), v2.ToDtype(torch.float32), v2.Normalize([-1], [3]), v2.ToDtype(torch.uint8)],
        [
            {"op": "to_image"},
            {"op": "to_dtype", "dtype": "float32"},
            {"op": "normalize", "mean": [-1], "std": [3]},
            {"op": "to_dtype", "dtype": "uint8"},
        ],
    ),
    "normalized": ([v1.ToTensor(), v1.Normalize(MEAN, STD)], [{"op": "to_tensor"}, NORMALIZE]),
    "v1 converted": (
        [v1.PILToTensor(), v1.ConvertImageDtype(torch.float32), v1.Normalize(MEAN, STD)],
        [],
    ),
    "v1 converted to 16 bits": (
        [v1.PILToTensor(), v1.ConvertImageDtype(torch.float16)],
        [],
    ),
    "v1 converted to bfloat16": (
        [v1.PILToTensor(), v1.ConvertImageDtype(torch.float), v1.ConvertImageDtype(torch.bfloat16)],
        [],
    ),
    "v1 converted and back": (
        [v1.ToTensor(), v1.ConvertImageDtype(torch.uint8), v1.ConvertImageDtype(torch.uint8)],
        [],
    ),
    "v2 converted": ([v2.PILToTensor(), v2.ConvertImageDtype(torch.float32)], []),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", VALUE_OPS)
def test_each_of_the_256_values_comes_out_as_in_torchvision(name: str) -> None:
    operations, ops = VALUE_OPS[name]
    values = np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(3, 2)
    image = Image.fromarray(values)
    ours = (
        native({"op": "center_crop", "size": [16, 16]}, *ops)
        if ops
        else Transform(to_json(v2.Compose(operations), pictures=Pictures(size=(16, 16))))
    )
    expected = v2.Compose(operations)(image).as_subclass(torch.Tensor)
    assert_same_bits(run(ours, image, RandomStream(0)), expected)


def test_apply_decodes_plans_and_transforms_a_file() -> None:
    file = BytesIO()
    noise(200, 150).save(file, "JPEG", quality=90, subsampling=2)
    operations, ops = PIPELINES["v1 training"]
    ours = native(*ops)
    torch.manual_seed(51)
    stream = stream_of_torch()
    found = torch.frombuffer(bytearray(ours.apply(file.getvalue(), stream)), dtype=torch.float32)
    expected = v1.Compose(operations)(Image.open(file).convert("RGB"))
    assert_same_bits(found.view(3, 64, 48), expected)
    assert stream.same_position(stream_of_torch())


def test_apply_leaves_the_stream_alone_when_a_file_is_doubtful() -> None:
    stream = RandomStream(1)
    with pytest.raises(Error):
        native(CROP, {"op": "to_tensor"}).apply(b"no image", stream)
    assert stream.same_position(RandomStream(1))


def test_the_json_form_comes_back_and_gives_the_same_bits() -> None:
    ours = native(*PIPELINES["v1 training"][1])
    again = Transform(ours.to_json())
    assert again.to_json() == ours.to_json()
    assert again.output == ours.output == ("image", "float32", (3, 64, 48))
    image = noise(70, 90)
    assert_same_bits(run(again, image, RandomStream(3)), run(ours, image, RandomStream(3)))


def test_refusals_name_the_operation() -> None:
    with pytest.raises(Error, match="resize: the size of the result"):
        native({"op": "resize", "size": 256}, {"op": "to_tensor"})
    with pytest.raises(Error, match="color_jitter"):
        native({"op": "color_jitter"})


@pytest.mark.skipif(
    os.environ.get("ATEN_CPU_CAPABILITY") == "default", reason="this is the inner run"
)
def test_plans_hold_without_vector_kernels() -> None:
    run_again = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
    inner = subprocess.run(
        [*run_again, "-k", "(crops and scale0) or edge or pipelines or values"],
        env={**os.environ, "ATEN_CPU_CAPABILITY": "default"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert inner.returncode == 0, inner.stdout + inner.stderr
