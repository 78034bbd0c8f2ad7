#!/usr/bin/env python3
"""Counts the instructions of the hot stages and compares them with the baseline beside this file.

    bench/instructions.py BINARY [--update]

BINARY is bench_instructions of a release build. Exits 1 when a stage takes more than 3 % more
instructions than in instructions.json. --update writes what was counted there instead: it belongs
into the commit that changes the numbers.

Runs under callgrind (Debian's valgrind), which knows AVX2 but not AVX-512: VNNI kernels are not
counted. Counts of libjpeg are part of the stages, so they hold for one environment; in another one
the table is shown without a verdict.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

BASELINE = Path(__file__).with_suffix(".json")
ALLOWED_GROWTH = 0.03


def environment(binary: Path) -> dict[str, str]:
    """What the counts depend on beside the sources."""
    lines = subprocess.run(
        [binary, "--environment"], check=True, capture_output=True, text=True, timeout=60
    ).stdout.splitlines()
    valgrind = subprocess.run(
        ["valgrind", "--version"], check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()
    libc = os.confstr("CS_GNU_LIBC_VERSION") or "unknown"
    return dict(line.split(": ", 1) for line in lines) | {"valgrind": valgrind, "libc": libc}


def count(binary: Path) -> dict[str, int]:
    """Instructions by stage, in the order in which the binary runs them."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind.out"
        subprocess.run(
            [
                "valgrind",
                "--quiet",
                "--tool=callgrind",
                "--collect-atstart=no",
                f"--callgrind-out-file={out}",
                binary,
            ],
            check=True,
            timeout=500,
            env={},  # the size of the environment moves the stack
        )
        parts = sorted(Path(folder).glob("callgrind.out.*"), key=lambda part: int(part.suffix[1:]))
        counts = {}
        for part in parts:
            text = part.read_text()
            stage = re.search(r"^desc: Trigger: Client Request: (.+)$", text, re.MULTILINE)
            total = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
            if stage and total:
                counts[stage[1]] = int(total[1])
        return counts


def compare(counts: dict[str, int], baseline: dict[str, int]) -> list[str]:
    """Prints the table; the stages that have grown too much or are unknown."""
    wrong = []
    print(f"{'stage':<20} {'instructions':>13} {'baseline':>13} {'change':>9}")
    for stage in counts | baseline:
        found, expected = counts.get(stage), baseline.get(stage)
        if found is None or expected is None:
            change = "new" if expected is None else "gone"
            wrong.append(f"{stage} is {change}")
        else:
            growth = found / expected - 1
            change = f"{growth:+.2%}"
            if growth > ALLOWED_GROWTH:
                wrong.append(f"{stage} takes {growth:.1%} more instructions")
        print(f"{stage:<20} {found or 0:>13,} {expected or 0:>13,} {change:>9}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=Path, help="bench_instructions of a release build")
    parser.add_argument("--update", action="store_true", help="make the counts the baseline")
    arguments = parser.parse_args()

    here, counts = environment(arguments.binary), count(arguments.binary)
    old = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    wrong = compare(counts, old.get("instructions", {}))
    if arguments.update:
        new = {"environment": here, "instructions": counts}
        BASELINE.write_text(json.dumps(new, indent=2) + "\n")
        return 0
    if here != old.get("environment"):
        print(f"No verdict: the baseline is of another environment.\n  {old.get('environment')}")
        print(f"  {here}")
        return 0
    for what in wrong:
        print(f"instructions: {what}")
    if wrong:
        print(f"If that is meant: {__file__} {arguments.binary} --update, and commit the result.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
