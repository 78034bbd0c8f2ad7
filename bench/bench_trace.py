"""Times reading a trace beside Python's json, and shows the peak of memory.

    python bench/bench_trace.py TRACE.json.gz          times both on the uncompressed text
    python bench/bench_trace.py TRACE.json.gz --gb 2   reads a trace of that size, made of its steps

Prints one JSON line.
"""

import argparse
import gzip
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from headrace.trace import read_traces

READ = "import sys; from headrace.trace import read_traces; print(len(read_traces(sys.argv[1:])))"


def seconds(work: Any) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def compare(path: Path, text: bytes, repeats: int) -> dict[str, Any]:
    path.write_bytes(text)
    steps = len(read_traces([str(path)])[0].steps)
    times: dict[str, list[float]] = {"headrace": [], "json": []}
    for _ in range(repeats):  # in turn, so that both see the same load
        times["headrace"].append(seconds(lambda: read_traces([str(path)])))
        times["json"].append(seconds(lambda: json.loads(path.read_bytes())))
    medians = {name: statistics.median(found) for name, found in times.items()}
    return {
        "megabytes": len(text) / 1e6,
        "steps": steps,
        "seconds": medians,
        "megabytes_per_s": {name: len(text) / 1e6 / s for name, s in medians.items()},
    }


def make_large(path: Path, text: bytes, gigabytes: float) -> int:
    """The same events again and again: a trace as long as wanted, though its times repeat."""
    head, _, rest = text.partition(b'"traceEvents": [')
    events, _, tail = rest.rpartition(b"]")
    with open(path, "wb") as file:
        file.write(head + b'"traceEvents": [' + events)
        while file.tell() < gigabytes * 1e9:
            file.write(b"," + events)
        file.write(b"]" + tail)
        return file.tell()


def measure_large(path: Path, text: bytes, gigabytes: float) -> dict[str, Any]:
    size = make_large(path, text, gigabytes)
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", READ, str(path)], check=True, stdout=sys.stderr)
    took = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return {"gigabytes": size / 1e9, "seconds": took, "peak_memory_gigabytes": peak / 1e9}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--gb", type=float)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    data = arguments.trace.read_bytes()
    text = gzip.decompress(data) if arguments.trace.suffix == ".gz" else data
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.json"
        if arguments.gb:
            result = measure_large(path, text, arguments.gb)
        else:
            result = compare(path, text, arguments.repeats)
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    print(json.dumps({"trace": arguments.trace.name, "cores": cores, "load": load} | result))


if __name__ == "__main__":
    main()
