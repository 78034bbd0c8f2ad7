"""Kernels: one hot operator or many, and a host that cannot keep the device fed."""

import re
from typing import Any

from headrace.diagnosis import Finding, Run
from headrace.rules.common import level_of, short

COMPUTE = (0.70, 0.90)
HOST = (0.15, 0.30)
HOT_OPERATOR = 0.30  # of compute
SHORT_KERNEL_NS = 50_000
# More host time for one kernel is no launching.
LAUNCH_NS = 500_000
MANY_ITEMS = 5  # a step
# What mixed precision and fusion leave of what they touch: guesses of the careful kind.
SAVED_BY_TENSOR_CORES = SAVED_BY_FUSION = SAVED_BY_REPLACING = 0.5

_MATRIX = re.compile(
    r"gemm|conv|cutlass|cudnn|xmma|wgrad|dgrad|fprop|nvjet|Cijk_|attention|flash|fmha|mma_", re.I
)
_TENSOR_CORES = re.compile(
    r"tensorop|hmma|imma|(?:s|i|h|d|bf|f)?(?:16816|1688|884|168128|64x\d+x16)(?:gemm|cudnn|fprop)?"
    r"|tf32|bf16|fp16|f16|fp8|e4m3|nvjet|wgmma|flash|fmha|mfma|MI\d+x\d+",
    re.I,
)
_POINTWISE = re.compile(
    r"elementwise|reduce_kernel|batch_norm|bn_|layer_?norm|softmax|dropout|multi_tensor_apply"
    r"|CatArrayBatched|max_pool|activation",
    re.I,
)


def compute_kernels(run: Run) -> dict[str, dict[str, Any]]:
    """Name -> calls and time per step (ms), of all ranks' compute kernels, longest first."""
    kernels: dict[str, dict[str, Any]] = {}
    for trace in run.traces:
        for kernel in trace.summary["kernels"]:
            if kernel["communication"] or kernel["copy"]:
                continue
            sums = kernels.setdefault(kernel["name"], {"calls": 0, "ms": 0.0})
            sums["calls"] += kernel["calls"]
            sums["ms"] += kernel["time_ns"] / 1e6 / run.step_count
    return dict(sorted(kernels.items(), key=lambda item: -item[1]["ms"]))


def compute_findings(run: Run) -> list[Finding]:
    """A device that is busy with compute: one operator, or many."""
    share = run.share("compute")
    level = level_of(share, COMPUTE)
    kernels = compute_kernels(run)
    if level is None or not kernels:
        return []
    total = sum(kernel["ms"] for kernel in kernels.values())
    name, top = next(iter(kernels.items()))
    top_share = top["ms"] / total
    evidence = [
        f"compute {100 * share:.1f} % of the step, {run.kind_ms('compute'):.1f} ms",
        f"top kernel {100 * top_share:.1f} % of it: {short(name)}",
        *_tensor_core_evidence(run, kernels),
    ]
    if top_share >= HOT_OPERATOR:
        evidence.append("the gain is an estimate: half of that kernel's time")
        return [
            Finding(
                "kernel",
                "one-operator",
                level,
                f"one operator takes {100 * top_share:.1f} % of the compute: {short(name)}",
                top["ms"] * SAVED_BY_REPLACING,
                evidence,
                [
                    *_compile_advice(run, "fuses it with its neighbours"),
                    "replace it by a fused or library form (scaled_dot_product_attention, a fused "
                    "optimizer, channels_last for convolutions)",
                    "a kernel of its own (Triton) if it stays on top",
                ],
            )
        ]
    matrix_ms, pointwise_ms = _untouched(kernels)
    gain = SAVED_BY_TENSOR_CORES * matrix_ms + SAVED_BY_FUSION * pointwise_ms
    evidence.append(
        "the gain is an estimate: half of the matrix kernels without tensor cores "
        f"({matrix_ms:.1f} ms) and of the memory-bound kernels ({pointwise_ms:.1f} ms)"
    )
    precision = (
        ["mixed precision: torch.autocast(dtype=torch.bfloat16), channels_last for convolutions"]
        if matrix_ms > 0.1 * total
        else []
    )
    return [
        Finding(
            "kernel",
            "broad",
            level,
            f"compute fills {100 * share:.1f} % of the step, spread over many kernels",
            gain,
            evidence,
            [
                *precision,
                *_compile_advice(run, "fuses memory-bound kernels"),
                "a larger batch, if memory allows; else a faster GPU or a smaller model",
            ],
        )
    ]


def _untouched(kernels: dict[str, dict[str, Any]]) -> tuple[float, float]:
    """Time of matrix kernels that run without tensor cores, and of memory-bound ones."""
    matrix = pointwise = 0.0
    for name, kernel in kernels.items():
        if _POINTWISE.search(name):
            pointwise += kernel["ms"]
        elif _MATRIX.search(name) and not _TENSOR_CORES.search(name):
            matrix += kernel["ms"]
    return matrix, pointwise


def _tensor_core_evidence(run: Run, kernels: dict[str, dict[str, Any]]) -> list[str]:
    major = run.gpu.get("computeMajor")
    if not isinstance(major, int) or major < 7 or "AMD" in str(run.gpu.get("name")):
        return []
    plain, _ = _untouched(kernels)
    matrix = sum(
        k["ms"] for n, k in kernels.items() if _MATRIX.search(n) and not _POINTWISE.search(n)
    )
    if not matrix:
        return []
    return [
        f"tensor cores: by their names {100 * (1 - plain / matrix):.0f} % of the matrix kernels' "
        "time uses them"
    ]


def _compile_advice(run: Run, what: str, mode: str | None = None) -> list[str]:
    compiled = run.total("compiled_regions") or any(
        name.startswith("triton_") for name in compute_kernels(run)
    )
    call = "torch.compile(model)" if mode is None else f'torch.compile(model, mode="{mode}")'
    if compiled and mode is None:
        return [
            "torch.compile is in use already: look for graph breaks (TORCH_LOGS=graph_breaks), "
            'then mode="max-autotune"'
        ]
    return [f"{call}: {what}"]


def host_findings(run: Run) -> list[Finding]:
    """A device that idles while the host works: by synchronising, launching, or else."""
    ms = run.kind_ms("host")
    level = level_of(run.share("host"), HOST)
    if level is None:
        return []
    kernels, items = run.per_step("launches"), run.per_step("items")
    syncs = run.per_step("syncs")
    after_sync = run.mean(lambda rank: rank.mean_ms(lambda step: step.sync_idle_ns))
    median_us = max(int(trace.summary["median_kernel_ns"]) for trace in run.traces) / 1e3
    evidence = [
        f"the GPU idles while the host works: {100 * run.share('host'):.1f} % of the step, "
        f"{ms:.1f} ms",
        f"{kernels:.0f} kernels a step, the median one takes {median_us:.1f} us",
        f"{syncs:.0f} synchronisations and {items:.0f} .item() a step; {after_sync:.1f} ms of idle "
        "time begin in one",
    ]
    if after_sync >= ms / 2 or (items >= MANY_ITEMS and after_sync >= ms / 4):
        return [
            Finding(
                "kernel",
                "sync-bound",
                level,
                f"the host stops to wait for the GPU, which then runs dry: {after_sync:.1f} ms a "
                "step",
                after_sync,
                evidence,
                [
                    "remove .item(), .cpu(), print() and branches on tensors from the step; log "
                    "every 50 steps; find them with torch.cuda.set_sync_debug_mode('warn')",
                    *_compile_advice(run, "launches what is left in one go", "reduce-overhead"),
                ],
            )
        ]
    in_long = run.mean(lambda rank: rank.mean_ms(lambda step: step.long_idle_ns))
    evidence.append(f"{in_long:.1f} ms of it in stretches of a millisecond and more")
    launching = in_long < ms / 2 and ms * 1e6 / max(kernels, 1) < LAUNCH_NS
    if median_us * 1e3 < SHORT_KERNEL_NS and launching:
        return [
            Finding(
                "kernel",
                "launch-bound",
                level,
                f"the host launches too slowly for kernels this short: {ms:.1f} ms a step",
                ms,
                evidence,
                [
                    "check first that the loader's threads or workers leave the launching thread a "
                    "core",
                    "remove synchronisations; use foreach or fused optimizers",
                    *_compile_advice(run, "CUDA graphs launch a step at once", "reduce-overhead"),
                    "a larger batch: the same launches for more work",
                ],
            )
        ]
    perhaps = "" if run.loader_name else ": perhaps it loads data, outside of a DataLoader"
    return [
        Finding(
            "unknown",
            "host",
            level,
            f"the GPU idles while the host does something else than launching: {ms:.1f} ms a step"
            + perhaps,
            ms,
            evidence,
            ["Profile with with_stack=True, or py-spy: the trace has no names for it"],
        )
    ]
