"""Random streams against the installed torch: raw draws, bit for bit."""

import os
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch

from headrace._core import Error, RandomStream

MILLION = 1_000_000
LOG_RATIO = torch.log(torch.tensor((3 / 4, 4 / 3))).tolist()


def torch_uniform(low: float, high: float, count: int) -> np.ndarray:
    return torch.empty(count).uniform_(low, high).numpy()


def find_fused_uniform() -> bool:
    """Which of the two roundings this torch has on this processor."""
    torch.manual_seed(1)
    expected = torch_uniform(*LOG_RATIO, 10_000).tobytes()
    return RandomStream(1, fused_uniform=True).uniform_many(*LOG_RATIO, 10_000) == expected


FUSED = find_fused_uniform()


def make_stream(seed: int) -> RandomStream:
    return RandomStream(seed, fused_uniform=FUSED)


def stream_of_torch() -> RandomStream:
    return RandomStream.from_torch_state(torch.get_rng_state().numpy(), fused_uniform=FUSED)


def test_a_million_rand_equal_torch() -> None:
    torch.manual_seed(11)
    assert make_stream(11).rand_many(MILLION) == torch.rand(MILLION).numpy().tobytes()


@pytest.mark.parametrize("bounds", [(0.08, 1.0), tuple(LOG_RATIO), (-3.7, 1e-3), (5, 5)])
def test_a_million_uniform_equal_torch(bounds: tuple[float, float]) -> None:
    torch.manual_seed(12)
    expected = torch_uniform(*bounds, MILLION)
    found = np.frombuffer(make_stream(12).uniform_many(*bounds, MILLION), np.float32)
    assert (found != expected).sum() == 0


@pytest.mark.parametrize(
    "size", [1, 2, 375, 2**28 - 1, 2**28, 2**32 - 1, 2**32, 2**32 + 1, 2**40 + 7, 2**63 - 1]
)
def test_a_million_randint_equal_torch(size: int) -> None:
    low = -(size // 2)
    torch.manual_seed(13)
    expected = torch.randint(low, low + size, (MILLION,)).numpy()
    found = np.frombuffer(make_stream(13).randint_many(low, low + size, MILLION), np.int64)
    assert (found != expected).sum() == 0


def test_single_draws_of_all_kinds_equal_torch_and_use_the_same_words() -> None:
    torch.manual_seed(14)
    stream = make_stream(14)
    for size in np.random.default_rng(14).integers(1, 2**33, 20_000).tolist():
        expected = (
            torch.rand(1).item(),
            torch.empty(1).uniform_(*LOG_RATIO).item(),
            torch.randint(0, size, (1,)).item(),
        )
        found = (
            *struct.unpack("f", stream.rand_many(1)),
            *struct.unpack("f", stream.uniform_many(*LOG_RATIO, 1)),
            *struct.unpack("q", stream.randint_many(0, size, 1)),
        )
        assert found == expected
    assert stream.same_position(stream_of_torch())


def test_the_two_roundings_of_uniform_differ() -> None:
    draws = {
        fused: RandomStream(1, fused_uniform=fused).uniform_many(*LOG_RATIO, 1_000)
        for fused in (True, False)
    }
    assert draws[True] != draws[False]


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**32 + 5, 2**64 - 3])
def test_seeds_count_as_for_manual_seed(seed: int) -> None:
    torch.manual_seed(seed)
    assert make_stream(seed).same_position(stream_of_torch())
    expected = torch.get_rng_state()
    torch.manual_seed(3)
    torch.randn(1)  # its second half is cached
    state = torch.get_rng_state()
    make_stream(seed).to_torch_state(state.numpy())
    assert torch.equal(state, expected)


@pytest.mark.parametrize("normals", [0, 1, 2, 17])
@pytest.mark.parametrize("before", [0, 1, 622, 623, 624, 625, 1247, 1248, 5000])
@pytest.mark.parametrize("ours", [0, 1, 2, 623, 624, 625])
def test_torch_continues_where_the_stream_stopped(before: int, ours: int, normals: int) -> None:
    torch.manual_seed(15)
    torch.randn(normals)
    torch.rand(before)
    start = torch.get_rng_state()

    torch.rand(ours)
    expected_state = torch.get_rng_state()

    stream = RandomStream.from_torch_state(start.numpy())
    stream.rand_many(ours)
    found_state = start.clone()
    stream.to_torch_state(found_state.numpy())
    assert torch.equal(found_state, expected_state)

    expected_next = torch.randn(3)
    torch.set_rng_state(found_state)
    assert torch.equal(torch.randn(3), expected_next)


def test_skipping_equals_drawing() -> None:
    drawn, skipped = make_stream(16), make_stream(16)
    drawn.rand_many(12_345)
    skipped.skip(12_345)
    assert skipped.same_position(drawn)
    assert skipped.words_drawn == drawn.words_drawn == 12_345


def test_a_copy_is_a_snapshot() -> None:
    stream = make_stream(17)
    snapshot = stream.copy()
    draws = stream.rand_many(5)
    assert not snapshot.same_position(stream)
    assert snapshot.rand_many(5) == draws


def test_other_bytes_than_a_torch_state_are_refused() -> None:
    state = torch.get_rng_state().numpy()
    with pytest.raises(Error, match="5056 bytes"):
        RandomStream.from_torch_state(state[:-1])
    with pytest.raises(Error, match="seeded"):
        RandomStream.from_torch_state(bytes(5056))
    with pytest.raises(BufferError):
        make_stream(1).to_torch_state(state.tobytes())


@pytest.mark.skipif(
    os.environ.get("ATEN_CPU_CAPABILITY") == "default", reason="this is the inner run"
)
def test_everything_here_holds_without_vector_kernels() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__],
        env={**os.environ, "ATEN_CPU_CAPABILITY": "default"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
