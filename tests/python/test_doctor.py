"""headrace doctor: what it must say about public traces and about traces made here."""

import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from headrace import cli
from headrace.diagnosis import Run
from headrace.doctor import to_json
from headrace.rules import findings_of
from headrace.trace import read_traces
from trace_writer import TraceWriter, steps

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"


def diagnose(*paths: Path | str) -> dict[str, Any]:
    run = Run(read_traces([str(path) for path in paths]))
    return to_json(run, findings_of(run))


def public(name: str) -> dict[str, Any]:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"no public trace {name} in {TRACES}")
    return diagnose(path)


def percent(diagnosis: dict[str, Any], *kinds: str) -> float:
    return float(sum(diagnosis["accounting"][kind]["percent"] for kind in kinds))


def first(diagnosis: dict[str, Any]) -> tuple[str, str, str]:
    finding = diagnosis["findings"][0]
    return finding["layer"], finding["kind"], finding["level"]


def told(finding: dict[str, Any]) -> str:
    return "\n".join([finding["title"], *finding["evidence"], *finding["treatment"]])


def close_to(value: float) -> Any:
    return pytest.approx(value, abs=0.1)


# --- public traces: the table of known values ----------------------------------------------------


def test_resnet50_without_workers_waits_for_data() -> None:
    diagnosis = public("resnet50_num_workers_0.pt.trace.json.gz")
    assert diagnosis["step_ms"] == pytest.approx(177.592, abs=0.001)
    assert diagnosis["gpu_busy_percent"] == close_to(56.6)
    assert percent(diagnosis, "loader") == close_to(33.4)
    assert first(diagnosis) == ("data", "loader", "high")
    finding = diagnosis["findings"][0]
    assert finding["ms_per_step"] == close_to(59.3)
    assert finding["ceiling_ms"] == close_to(177.592 - 59.3)
    assert "100 % pageable" in told(finding)
    assert "num_workers: it is 0" in told(finding)


def test_resnet50_with_workers_computes() -> None:
    diagnosis = public("resnet50_num_workers_4.pt.trace.json.gz")
    assert diagnosis["step_ms"] == pytest.approx(141.068, abs=0.001)
    assert diagnosis["gpu_busy_percent"] == close_to(72.6)
    assert percent(diagnosis, "loader") == close_to(0.8)
    assert percent(diagnosis, "compute") == close_to(70.3)
    assert percent(diagnosis, "host") == close_to(26.6)
    kinds = [(finding["layer"], finding["kind"]) for finding in diagnosis["findings"]]
    assert kinds == [("kernel", "broad"), ("kernel", "launch-bound")]


def test_v100_in_nanoseconds_computes_broadly() -> None:
    diagnosis = public("v100_ns_resolution.pt.trace.json.gz")
    assert percent(diagnosis, "compute") == close_to(96.8)
    assert first(diagnosis) == ("kernel", "broad", "high")
    assert "top kernel 5.6 % of it" in told(diagnosis["findings"][0])


def test_a100_with_8_gpus_communicates() -> None:
    diagnosis = public("a100_8gpu_control.json.gz")
    assert percent(diagnosis, "communication") == close_to(18.9)
    assert percent(diagnosis, "host") == close_to(16.3)
    assert first(diagnosis) == ("communication", "undivided", "moderate")
    text = told(diagnosis["findings"][0])
    assert "exposed 18.9 % of the step; in all 35.2 %, of which 46 % is hidden" in text
    assert "one rank only" in text
    assert diagnosis["findings"][1]["kind"] == "launch-bound"


def test_dlrm_waits_for_rank_7() -> None:
    diagnosis = public("dlrm_8ranks.tar.gz")
    assert diagnosis["verdict"] == "weak"
    assert first(diagnosis) == ("communication", "skew", "high")
    finding = diagnosis["findings"][0]
    assert finding["title"].startswith("rank 7 is late")
    assert "88 to 98 % of each rank's communication is waiting" in told(finding)
    assert "rank 7 has the least communication time" in finding["evidence"]
    assert finding["treatment"][0].startswith("Look at rank 7")
    least = min(diagnosis["ranks"], key=lambda rank: rank["communication_ms"])
    assert least["rank"] == 7


@pytest.mark.parametrize("name", ["cpu_only.pt.trace.json.gz", "rank_non_gpu.json.gz"])
def test_traces_without_gpu_events_tell_nothing(name: str) -> None:
    diagnosis = public(name)
    assert first(diagnosis) == ("unknown", "no-gpu-events", "none")
    assert "no GPU events" in diagnosis["findings"][0]["title"]
    assert len(diagnosis["findings"]) == 1


def test_alexnet_without_steps_allocates() -> None:
    diagnosis = public("alexnet_no_steps.json.gz")
    assert diagnosis["verdict"] == "weak"
    assert percent(diagnosis, "allocation") == pytest.approx(20, abs=0.5)
    assert first(diagnosis)[:2] == ("memory", "allocation")
    assert any("no ProfilerStep" in note for note in diagnosis["cannot_tell"])


@pytest.mark.parametrize(
    ("name", "kept"), [("amd_mi250.json.gz", 1), ("triton_example.json.gz", 1)]
)
def test_too_few_steps_tell_nothing(name: str, kept: int) -> None:
    diagnosis = public(name)
    assert (diagnosis["steps"], diagnosis["verdict"]) == (kept, "none")
    assert first(diagnosis) == ("unknown", "too-few-steps", "none")


def test_rocm_copies_are_of_unknown_memory() -> None:
    notes = public("amd_mi250.json.gz")["cannot_tell"]
    assert any("unknown, not zero" in note for note in notes)


@pytest.mark.parametrize("path", sorted(TRACES.glob("*.gz")), ids=lambda path: path.name)
def test_the_accounting_adds_up(path: Path) -> None:
    diagnosis = diagnose(path)
    assert percent(diagnosis, *diagnosis["accounting"]) == pytest.approx(100, abs=1e-9)
    for trace in read_traces([str(path)]):
        for step in trace.steps:
            assert sum(step.time_ns.values()) == step.duration_ns


# --- traces made here -----------------------------------------------------------------------------


def test_pageable_copies_that_are_not_hidden(tmp_path: Path) -> None:
    kinds = {}
    for memory in ("Pageable", "Pinned", "Host"):
        writer = TraceWriter()
        for begin in steps(writer):
            writer.copy(begin + 10, 12_000, memory)
            writer.kernel(begin + 12_010, 60_000, launch=begin + 20)
        kinds[memory] = diagnose(writer.write(tmp_path / f"{memory}.json"))
    assert first(kinds["Pageable"]) == ("data", "pageable-copies", "high")
    assert "pin_memory=True" in kinds["Pageable"]["findings"][0]["treatment"][0]
    assert all(f["kind"] != "pageable-copies" for f in kinds["Pinned"]["findings"])
    assert first(kinds["Host"]) == ("data", "copies", "high")
    assert "not recorded" in told(kinds["Host"]["findings"][0])


def test_memory_near_its_limit(tmp_path: Path) -> None:
    def with_reserved(share: float) -> dict[str, Any]:
        writer = TraceWriter()
        for begin in steps(writer):
            writer.kernel(begin + 10, 60_000)
            writer.memory(begin + 20, 10 << 30, int(share * (80 << 30)))
            writer.memory(begin + 30, 50 << 30, int(share * (80 << 30)))
            writer.memory(begin + 40, 1 << 50, 1 << 50, device_type=0)  # the host's
        return diagnose(writer.write(tmp_path / "memory.json"))

    assert all(finding["layer"] != "memory" for finding in with_reserved(0.89)["findings"])
    levels = {share: first(with_reserved(share)) for share in (0.91, 0.96)}
    assert levels == {
        0.91: ("memory", "near-limit", "moderate"),
        0.96: ("memory", "near-limit", "high"),
    }
    text = told(with_reserved(0.96)["findings"][0])
    assert "10.00 GiB stay" in text and "40.00 GiB come and go" in text
    accumulation, recomputation, precision, sharding = with_reserved(0.96)["findings"][0][
        "treatment"
    ]
    assert "accumulation" in accumulation and "recomputation" in recomputation
    assert "mixed precision" in precision and "FSDP" in sharding


def test_allocation_retries_come_from_the_sidecar(tmp_path: Path) -> None:
    writer = TraceWriter()
    for begin in steps(writer):
        writer.kernel(begin + 10, 60_000)
        writer.memory(begin + 20, 1 << 30, 2 << 30)
    writer.write(tmp_path / "a.pt.trace.json")
    (tmp_path / "a.headrace.json").write_text(json.dumps({"memory": {"alloc_retries": 3}}))
    diagnosis = diagnose(tmp_path / "a.pt.trace.json")
    assert first(diagnosis) == ("memory", "near-limit", "high")
    assert "3 allocation retries" in told(diagnosis["findings"][0])


def ranks(tmp_path: Path, loader_us: dict[int, float]) -> dict[str, Any]:
    """Four ranks in step; what a rank waits for its loader the others wait in the all-reduce."""
    latest = max(loader_us.values())
    for rank, waits in loader_us.items():
        writer = TraceWriter(distributedInfo={"backend": "nccl", "rank": rank, "world_size": 4})
        for begin in steps(writer):
            writer.loader(begin + 10, waits)
            writer.kernel(begin + waits + 20, 40_000)
            ends = begin + latest + 40_020 + 2_000
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
            late = begin + waits + 40_020
            writer.kernel(late, ends - late, name, **{"In msg nelems": 1 << 18, "dtype": "Float"})
        writer.write(tmp_path / f"rank{rank}.json")
    return diagnose(tmp_path)


def test_a_rank_with_a_slow_loader_is_named_before_the_waiting_of_the_others(
    tmp_path: Path,
) -> None:
    diagnosis = ranks(tmp_path, {0: 500, 1: 500, 2: 45_000, 3: 500})
    data, skew = diagnosis["findings"][:2]
    assert (data["layer"], data["kind"]) == ("data", "loader")
    assert "on rank 2" in data["title"]
    assert skew["kind"] == "skew" and skew["title"].startswith("rank 2 is late")
    assert any("'GPU idle, loader waited for'" in sentence for sentence in skew["evidence"])


def test_balanced_ranks_have_transfer_and_no_skew(tmp_path: Path) -> None:
    for rank in range(2):
        writer = TraceWriter(distributedInfo={"rank": rank, "world_size": 2})
        for begin in steps(writer):
            writer.kernel(begin + 10, 60_000)
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
            writer.kernel(begin + 60_010, 30_000, name, **{"In msg nelems": 250, "dtype": "Float"})
        writer.write(tmp_path / f"rank{rank}.json")
    finding = diagnose(tmp_path)["findings"][0]
    assert (finding["layer"], finding["kind"]) == ("communication", "transfer")
    assert "larger buckets" in told(finding)
    assert "overlap" in finding["treatment"][0]


def test_an_unbalanced_collective(tmp_path: Path) -> None:
    for rank in range(2):
        writer = TraceWriter(distributedInfo={"rank": rank, "world_size": 2})
        for begin in steps(writer):
            compute = 70_000 if rank == 1 else 30_000
            writer.kernel(begin + 10, compute)
            late = begin + 10 + compute
            writer.kernel(late, begin + 72_000 - late, "ncclKernel_AllGather_RING_LL(...)")
        writer.write(tmp_path / f"rank{rank}.json")
    finding = diagnose(tmp_path)["findings"][0]
    assert finding["title"].startswith("rank 1 is late")
    assert any("of 'compute' than on the others" in sentence for sentence in finding["evidence"])


def short_kernels(
    writer: TraceWriter, begin: float, idle_share: float = 0.5, count: int = 1000
) -> None:
    for i in range(count):
        writer.kernel(begin + 10 + 90 * i, 90 * (1 - idle_share))


def test_launch_bound(tmp_path: Path) -> None:
    writer = TraceWriter()
    for begin in steps(writer):
        short_kernels(writer, begin)
    diagnosis = diagnose(writer.write(tmp_path / "a.json.gz"))
    assert first(diagnosis) == ("kernel", "launch-bound", "high")
    text = told(diagnosis["findings"][0])
    assert "reduce-overhead" in text and "loader's threads" in text


def test_a_host_that_does_something_else_is_not_launch_bound(tmp_path: Path) -> None:
    writer = TraceWriter()
    for begin in steps(writer):
        short_kernels(writer, begin, idle_share=0.1, count=500)  # then nothing for 55 ms
    diagnosis = diagnose(writer.write(tmp_path / "a.json"))
    assert first(diagnosis)[:2] == ("unknown", "host")
    assert "perhaps it loads data" in diagnosis["findings"][0]["title"]


def test_sync_bound(tmp_path: Path) -> None:
    writer = TraceWriter()
    for begin in steps(writer):
        for i in range(20):
            at = begin + 10 + 4_000 * i
            writer.kernel(at, 2_000)
            writer.event("cpu_op", "aten::_local_scalar_dense", at + 10, 2_000)
            writer.event("cuda_runtime", "cudaStreamSynchronize", at + 20, 1_990)
    diagnosis = diagnose(writer.write(tmp_path / "a.json"))
    assert first(diagnosis) == ("kernel", "sync-bound", "high")
    assert "20 .item() a step" in told(diagnosis["findings"][0])


def test_one_hot_operator_and_torch_compile(tmp_path: Path) -> None:
    texts = {}
    for compiled in (False, True):
        writer = TraceWriter()
        for begin in steps(writer):
            writer.kernel(begin + 10, 60_000, "my_slow_kernel(float*)")
            writer.kernel(begin + 60_010, 35_000, "triton_poi_fused_add_0" if compiled else "other")
        diagnosis = diagnose(writer.write(tmp_path / "a.json"))
        assert first(diagnosis) == ("kernel", "one-operator", "high")
        texts[compiled] = told(diagnosis["findings"][0])
    assert "my_slow_kernel" in texts[False] and "torch.compile(model): fuses" in texts[False]
    assert "in use already" in texts[True]


def test_tensor_cores_unused(tmp_path: Path) -> None:
    texts = {}
    for name in ("ampere_sgemm_128x64_nn", "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", "nvjet_tst"):
        writer = TraceWriter()
        for begin in steps(writer):
            for i in range(5):
                writer.kernel(begin + 10 + 18_000 * i, 18_000, f"{name}_{i}")
        texts[name] = told(diagnose(writer.write(tmp_path / "a.json"))["findings"][0])
    plain, *others = texts.values()
    assert "0 % of the matrix kernels" in plain and "mixed precision" in plain
    for text in others:
        assert "100 % of the matrix kernels" in text and "mixed precision" not in text


def test_two_findings_within_a_fifth_are_both_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = TraceWriter()
    for begin in steps(writer):
        writer.loader(begin + 10, 30_000)
        writer.kernel(begin + 30_010, 40_000)
        writer.kernel(begin + 70_010, 28_000, "ncclDevKernel_AllReduce_Sum_f32")
    path = writer.write(tmp_path / "a.json")
    assert cli.main(["doctor", str(path)]) == 0
    assert "data and communication" in capsys.readouterr().out


@pytest.mark.parametrize(("count", "verdict"), [(2, "none"), (3, "weak"), (4, "weak"), (5, "firm")])
def test_few_steps_weaken_the_verdict(tmp_path: Path, count: int, verdict: str) -> None:
    writer = TraceWriter()
    for begin in steps(writer, count):
        writer.kernel(begin + 10, 95_000)
    assert diagnose(writer.write(tmp_path / "a.json"))["verdict"] == verdict


def test_a_cut_off_last_step_is_dropped(tmp_path: Path) -> None:
    writer = TraceWriter()
    for begin in steps(writer):
        for i in range(10):
            writer.kernel(begin + 10 + 9_000 * i, 8_000)
    writer.step(100_000)
    for i in range(7):
        writer.kernel(writer.now - 99_000 + 9_000 * i, 8_000)
    diagnosis = diagnose(writer.write(tmp_path / "a.json"))
    assert diagnosis["ranks"][0]["dropped_steps"] == 1
    assert diagnosis["steps"] == 6


def test_a_gpu_without_events_is_not_taken_for_a_cpu(tmp_path: Path) -> None:
    def waiting(**metadata: Any) -> dict[str, Any]:
        writer = TraceWriter(**metadata)
        for begin in steps(writer):
            writer.loader(begin + 10, 40_000)
        return diagnose(writer.write(tmp_path / "a.json"))

    assert first(waiting()) == ("unknown", "no-gpu-events", "none")  # an H100 is listed
    assert first(waiting(deviceProperties=[])) == ("data", "loader", "high")


def test_a_cpu_that_does_not_wait_for_data(tmp_path: Path) -> None:
    writer = TraceWriter(deviceProperties=[])
    for begin in steps(writer):
        writer.loader(begin + 10, 1_000)
    diagnosis = diagnose(writer.write(tmp_path / "a.json"))
    assert first(diagnosis) == ("unknown", "balanced", "none")
    assert "not the data" in diagnosis["findings"][0]["title"]


def test_counters_that_contradict_the_trace_are_a_finding(tmp_path: Path) -> None:
    for waited, found in ((400, False), (800, True)):
        trace = data_bound().write(tmp_path / "a.json")
        loader = {"consumer_wait_ns": waited, "wall_ns": 1000}
        (tmp_path / "a.headrace.json").write_text(json.dumps({"loader": loader}))
        kinds = [finding["kind"] for finding in diagnose(trace)["findings"]]
        assert kinds == (["loader", "counters-differ"] if found else ["loader"])


# --- files ----------------------------------------------------------------------------------------


def data_bound() -> TraceWriter:
    writer = TraceWriter()
    for begin in steps(writer):
        writer.loader(begin + 10, 40_000)
        writer.kernel(begin + 40_020, 50_000)
    return writer


def test_archives_and_directories_hold_traces(tmp_path: Path) -> None:
    data_bound().write(tmp_path / "rank0.trace.json")
    data_bound().write(tmp_path / "rank1.trace.json.gz")
    (tmp_path / "notes.json").write_text("{}")  # beside files that are called traces
    both = diagnose(tmp_path)
    assert [rank["rank"] for rank in both["ranks"]] == [0, 1]
    for name, mode in (("all.tar", "w"), ("all.tar.gz", "w:gz")):
        archive = tmp_path / name
        with tarfile.open(archive, mode) as tar:  # type: ignore[call-overload]
            for rank in ("rank0.trace.json", "rank1.trace.json.gz"):
                tar.add(tmp_path / rank, rank)
        assert diagnose(archive)["findings"] == both["findings"]


def test_the_json_has_the_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = data_bound().write(tmp_path / "a.json")
    assert cli.main(["doctor", str(trace), "--json", str(tmp_path / "out.json")]) == 0
    assert "to win back: 40.0 ms" in capsys.readouterr().out
    content = json.loads((tmp_path / "out.json").read_text())
    assert cli.main(["doctor", str(trace), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == content
    finding = content["findings"][0]
    assert finding["layer"] == "data" and finding["level"] == "high"
    assert finding["ms_per_step"] == pytest.approx(40)
    assert finding["evidence"] and finding["treatment"]


def begins(text: str, damage: str) -> str:
    event = text.rindex('{"ph"', 0, text.index(damage))
    return f"in the event that begins at byte {event}:"


def damaged(kind: str) -> tuple[str, bytes, str]:
    """Name and content of a bad file, and what the error must say."""
    text = data_bound().text()
    half = len(text) // 2
    if kind == "truncated":
        return "a.json", text[:half].encode(), f"byte {half}: the file ends in the middle"
    if kind == "broken":
        bad = text.replace('"dur": 40000', '"dur": ', 1)
        return "a.json", bad.encode(), begins(bad, '"dur": }')
    if kind == "unescaped quotes":
        bad = text.replace("aten::linear", 'aten::"linear"', 1)
        return "a.json", bad.encode(), begins(bad, 'aten::"')
    if kind == "truncated gzip":
        return "a.json.gz", gzip.compress(text.encode())[:-200], "damaged gzip data"
    if kind == "no gzip":
        return "a.json.gz", b"\x1f\x8b\x08garbage", "damaged gzip data"
    if kind == "empty":
        return "a.json", b"", "byte 0: the file is empty"
    if kind == "other JSON":
        return "a.json", b'{"epochs": [1, 2]}', "byte 17: JSON without traceEvents"
    if kind == "other array":
        return "a.json", b"[1, 2]", "byte 1: expected an event"
    if kind == "no events":
        return "a.json", b'{"traceEvents": []}', "none of its 0 events"
    return "a.json", b"GIF89a", "byte 0: this is not JSON"


@pytest.mark.parametrize(
    "kind",
    [
        "truncated",
        "broken",
        "unescaped quotes",
        "truncated gzip",
        "no gzip",
        "empty",
        "other JSON",
        "other array",
        "no events",
        "text",
    ],
)
def test_damaged_files_are_refused_with_name_and_place(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, content, message = damaged(kind)
    (tmp_path / name).write_bytes(content)
    assert cli.main(["doctor", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert f"headrace doctor: {tmp_path / name}: " in error
    assert message in error and "byte" in error


@pytest.mark.parametrize("name", ["all.tar", "all.tar.gz"])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_truncated_archives_are_refused(
    tmp_path: Path, name: str, share: float, capsys: pytest.CaptureFixture[str]
) -> None:
    data_bound().write(tmp_path / "rank0.json")
    archive = tmp_path / name
    with tarfile.open(archive, "w:gz" if name.endswith("gz") else "w") as tar:
        for rank in range(3):
            tar.add(tmp_path / "rank0.json", f"rank{rank}.json")
    # Of a tar the end is padding.
    size = archive.stat().st_size if name == "all.tar.gz" else 3 * (512 + len(data_bound().text()))
    archive.write_bytes(archive.read_bytes()[: int(share * size)])
    assert cli.main(["doctor", str(archive)]) == 2
    error = capsys.readouterr().err
    assert f"{archive}: " in error and "damaged" in error and "byte" in error


def test_missing_files_and_empty_directories_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor", str(tmp_path / "nothing.json")]) == 2
    assert cli.main(["doctor", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "does not exist" in error and "no .json" in error


def test_control_characters_are_read_and_told(tmp_path: Path) -> None:
    text = data_bound().text().replace("aten::linear", "aten::\tlinear\x01", 1)
    (tmp_path / "a.json").write_text(text)
    diagnosis = diagnose(tmp_path / "a.json")
    assert first(diagnosis) == ("data", "loader", "high")
    (note,) = (note for note in diagnosis["cannot_tell"] if "control characters" in note)
    assert "2 control characters" in note and f"byte {text.index(chr(9))}" in note
