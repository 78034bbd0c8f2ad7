"""headrace compare: gates, verdicts, exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace import cli
from trace_writer import TraceWriter

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"


def write(
    folder: Path, name: str, steps: list[tuple[float, float]], sidecar: Any = None, **metadata: Any
) -> str:
    """A trace with a step for each (ms waiting for the loader, ms of compute)."""
    writer = TraceWriter(**metadata)
    for waits, computes in steps:
        begin = writer.step(1000 * (waits + computes) + 2000)
        writer.loader(begin + 10, 1000 * waits)
        writer.kernel(begin + 1000 * waits + 20, 1000 * computes)
    if sidecar is not None:
        (folder / f"{name}.headrace.json").write_text(json.dumps(sidecar))
    return str(writer.write(folder / f"{name}.pt.trace.json"))


def compared(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    out = tmp_path / "out.json"
    out.unlink(missing_ok=True)
    status = cli.main(["compare", *arguments, "--json", str(out)])
    return status, json.loads(out.read_text()) if out.exists() else {}


SLOW = [(40.0 + i % 3, 60.0) for i in range(6)]
FAST = [(1.0 + i % 3, 60.0) for i in range(6)]


def test_public_resnet50_is_verified_with_its_side_effect(tmp_path: Path) -> None:
    before, after = (TRACES / f"resnet50_num_workers_{n}.pt.trace.json.gz" for n in (0, 4))
    if not before.exists():
        pytest.skip(f"no public traces in {TRACES}")
    status, result = compared(tmp_path, str(before), str(after))
    assert (status, result["verdict"]) == (0, "VERIFIED")
    assert result["mean_change_percent"] == pytest.approx(20.6, abs=0.1)
    assert result["treated"] == "loader"
    assert result["to_win"] == pytest.approx(59.3, abs=0.1)
    assert result["won"] == pytest.approx(36.5, abs=0.1)
    assert result["side_effects"]["host"] == [
        pytest.approx(17.8, abs=0.1),
        pytest.approx(37.5, abs=0.1),
    ]
    assert result["bottleneck"]["layer"] == "kernel"


def test_public_a100_against_v100_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = TRACES / "a100_8gpu_control.json.gz", TRACES / "v100_2gpu_test.json.gz"
    if not before.exists():
        pytest.skip(f"no public traces in {TRACES}")
    assert compared(tmp_path, str(before), str(after))[0] == 2
    error = capsys.readouterr().err
    assert "GPU: NVIDIA A100-PG509-200 before, Tesla V100-SXM2-16GB after" in error
    assert "world size: 8 before, 2 after" in error and "--force" in error


def test_a_cured_loader_is_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = write(tmp_path, "before", SLOW), write(tmp_path, "after", FAST)
    picture = tmp_path / "a.png"
    status, result = compared(tmp_path, before, after, "--plot", str(picture))
    assert (status, result["verdict"]) == (0, "VERIFIED")
    assert result["won"] == pytest.approx(39) and result["to_win"] == pytest.approx(41)
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    text = capsys.readouterr().out
    assert "VERIFIED" in text and "39.0 ms a step won, 41.0 ms were there to win" in text


def test_faster_for_another_reason_is_told(tmp_path: Path) -> None:
    before = write(tmp_path, "before", SLOW)
    after = write(tmp_path, "after", [(waits, 20.0) for waits, _ in SLOW])
    status, result = compared(tmp_path, before, after)
    assert (status, result["verdict"]) == (1, "faster, but not for the stated reason")
    assert compared(tmp_path, before, after, "--treated", "compute")[1]["verdict"] == "VERIFIED"
    # The treated part fell, but that is not what made the step shorter.
    after = write(tmp_path, "after", [(waits - 2, 20.0) for waits, _ in SLOW])
    status, result = compared(tmp_path, before, after)
    assert (status, result["verdict"]) == (1, "faster, but not for the stated reason")


def test_noise_small_changes_and_slowness_are_no_cure(tmp_path: Path) -> None:
    def verdict(steps: list[tuple[float, float]], base: list[tuple[float, float]] = SLOW) -> str:
        before, after = write(tmp_path, "before", base), write(tmp_path, "after", steps)
        status, result = compared(tmp_path, before, after)
        assert status == 1
        return str(result["verdict"])

    assert verdict(SLOW) == "no change that counts"
    assert verdict([(waits - 2.5, 60.0) for waits, _ in SLOW]) == "no change that counts"  # 2.4 %
    noisy = [(waits, 60.0) for waits in (5, 90, 5, 90, 40, 41)]
    assert verdict(noisy) == "no change that counts"
    assert verdict([(waits + 30, 60.0) for waits, _ in SLOW]) == "slower"
    assert verdict(FAST[:2]) == "cannot tell"


def test_runs_that_differ_are_refused_unless_forced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = {"batch_size": 32, "dtype": "float32", "torch": "2.6", "world_size": 1, "gpu": None}
    same["profiler"] = {"with_stack": False}
    before = write(tmp_path, "before", SLOW, same)
    for name, value in {
        "batch_size": 64,
        "dtype": "bfloat16",
        "torch": "2.7",
        "world_size": 2,
        "profiler": {"with_stack": True},
    }.items():
        after = write(tmp_path, "after", FAST, {**same, name: value})
        assert compared(tmp_path, before, after)[0] == 2
        assert "must not be compared" in capsys.readouterr().err
        assert compared(tmp_path, before, after, "--force")[0] == 0
    assert compared(tmp_path, before, write(tmp_path, "after", FAST, same))[0] == 0
    # What only one side knows is named, not refused.
    (tmp_path / "after.headrace.json").unlink()
    status, result = compared(tmp_path, before, str(tmp_path / "after.pt.trace.json"))
    assert status == 0
    assert any("not recorded" in note and "batch size" in note for note in result["notes"])


def test_unequal_batches_are_compared_by_the_sample(tmp_path: Path) -> None:
    before = write(tmp_path, "before", SLOW, {"batch_size": 32})
    doubled = [(2 * waits, 2 * computes) for waits, computes in SLOW]
    after = write(tmp_path, "after", doubled, {"batch_size": 64})
    status, result = compared(tmp_path, before, after, "--force")
    assert (status, result["verdict"], result["scale"]) == (1, "no change that counts", 0.5)


def test_spans_are_resampled_as_wholes(tmp_path: Path) -> None:
    # Within a span the steps are alike; between spans of one run they are not.
    for side, spans in {"before": (20.0, 60.0), "after": (15.0, 58.0)}.items():
        folder = tmp_path / side
        folder.mkdir()
        for number, waits in enumerate(spans):
            write(folder, f"rank0-{number}", [(waits, 60.0)] * 6)
    status, result = compared(tmp_path, str(tmp_path / "before"), str(tmp_path / "after"))
    assert (status, result["verdict"]) == (1, "no change that counts")
    assert not any("one profiled span" in note for note in result["notes"])


def test_a_plot_that_cannot_be_written_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = write(tmp_path, "before", SLOW), write(tmp_path, "after", FAST)
    assert cli.main(["compare", before, after, "--plot", str(tmp_path / "no" / "a.png")]) == 2
    assert "--plot" in capsys.readouterr().err
