"""Traces of torch.profiler, from files, archives and directories; parsed in C++ (trace.h)."""

import gzip
import io
import json
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from headrace._core import Error, TraceReader

# Where a step's time goes, in the order of headrace::TimeKind.
KINDS = ("compute", "communication", "copy", "loader", "allocation", "host", "unknown")
# Where a copy's bytes lay, in the order of headrace::HostMemory.
MEMORIES = ("pageable", "pinned", "unknown")

SIDECAR_SUFFIX = ".headrace.json"

_TRACE_SUFFIXES = (".json", ".json.gz", ".tar", ".tar.gz", ".tgz")
_PIECE_BYTES = 4 << 20


class TraceError(Exception):
    """A trace that cannot be read: which, where in it, and the remedy."""


@dataclass(frozen=True)
class Step:
    """One step of one rank; times in nanoseconds. `time_ns` by KINDS adds up to the whole."""

    name: str
    begin_ns: int
    end_ns: int
    time_ns: dict[str, int]
    loader_wait_ns: int
    communication_ns: int
    sync_idle_ns: int
    long_idle_ns: int
    to_device_ns: dict[str, int]
    to_device_exposed_ns: dict[str, int]

    @property
    def duration_ns(self) -> int:
        """From its begin to its end."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True)
class Trace:
    """What is left of one file.

    Attributes:
        path: the file, with an archive's name before the member's.
        summary: the members of headrace::TraceSummary, but `steps` and `metadata_json`.
        metadata: the members of the trace's top-level object, without the events.
        sidecar: what headrace.profile wrote beside it; empty if there is none.
    """

    path: str
    steps: list[Step]
    summary: dict[str, Any]
    metadata: dict[str, Any]
    sidecar: dict[str, Any] = field(default_factory=dict)

    @property
    def rank(self) -> int | None:
        """From distributedInfo, the sidecar or the file's name."""
        for source in (self.metadata.get("distributedInfo"), self.sidecar):
            if isinstance(source, dict) and isinstance(source.get("rank"), int):
                return int(source["rank"])
        found = re.search(r"(?:rank|worker)[-_]?(\d+)", os.path.basename(self.path))
        return int(found[1]) if found else None

    @property
    def world_size(self) -> int | None:
        """Number of ranks that trained; None if not recorded."""
        for source in (self.metadata.get("distributedInfo"), self.sidecar):
            if isinstance(source, dict) and isinstance(source.get("world_size"), int):
                return int(source["world_size"])
        return None

    @property
    def device(self) -> dict[str, Any]:
        """Properties of the device that was used, or of the only kind there is."""
        listed = self.metadata.get("deviceProperties")
        devices = [d for d in listed if isinstance(d, dict)] if isinstance(listed, list) else []
        for properties in devices:
            if properties.get("id") == self.summary["device"]:
                return properties
        return devices[0] if devices else {}

    @property
    def begin_ns(self) -> int:
        """Begin of the first step, on the trace's own clock."""
        return self.steps[0].begin_ns

    def at_ms(self, time_ns: int) -> str:
        """Where in the trace a moment is: its time as a viewer shows it, in words."""
        return f"at {(time_ns - self.begin_ns) / 1e6:.1f} ms after the first step's begin"


# --- reading --------------------------------------------------------------------------------------


def read_traces(
    paths: Sequence[str], on_bytes: Callable[[int], None] = lambda count: None
) -> list[Trace]:
    """Reads every trace in files, archives (.tar, .tar.gz) and directories.

    Memory is bounded by what is kept of a trace, not by its size.

    Args:
        paths: as given on a command line.
        on_bytes: called with the number of bytes of the files that were read since the last call.

    Raises:
        TraceError: a file is missing or damaged, or holds no trace.
    """
    traces: list[Trace] = []
    sidecars: dict[str, dict[str, Any]] = {}
    for path in list_files(paths):
        try:
            with open(path, "rb") as file:
                for name, content in _contents(path, _Counted(file, on_bytes)):
                    if name.endswith(SIDECAR_SUFFIX):
                        sidecars[name] = _read_sidecar(name, content)
                    else:
                        traces.append(_read_trace(name, content))
        except OSError as error:
            raise TraceError(
                f"{path}: {error.strerror or error}. Check its name and permissions"
            ) from error
        beside = _sidecar_name(path)
        if beside not in sidecars and os.path.exists(beside):
            with open(beside, "rb") as file:
                sidecars[beside] = _read_sidecar(beside, file)
    return [_with_sidecar(trace, sidecars.get(_sidecar_name(trace.path))) for trace in traces]


def list_files(paths: Sequence[str]) -> list[str]:
    """The files behind arguments of which some may be directories.

    Raises:
        TraceError: a path does not exist, or a directory has no trace.
    """
    files: list[str] = []
    for path in paths:
        if not os.path.isdir(path):
            if not os.path.exists(path):
                raise TraceError(
                    f"{path}: does not exist. Name a trace, a tar of traces or a directory"
                )
            files.append(path)
            continue
        found = sorted(
            str(file)
            for file in Path(path).rglob("*")
            if file.name.endswith(_TRACE_SUFFIXES) and not file.name.endswith(SIDECAR_SUFFIX)
        )
        # Beside traces there may be other JSON; torch's handler writes *.pt.trace.json.
        named = [file for file in found if "trace" in os.path.basename(file)]
        if not found:
            raise TraceError(f"{path}: no .json, .json.gz or .tar.gz in this directory")
        files += named or found
    return files


class _Counted(io.RawIOBase):
    """A file that reports how far it was read."""

    def __init__(self, file: IO[bytes], on_bytes: Callable[[int], None]) -> None:
        self._file = file
        self._on_bytes = on_bytes

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._on_bytes(len(data))
        return len(data)


def _contents(path: str, file: io.RawIOBase) -> Iterator[tuple[str, IO[bytes]]]:
    """Name and uncompressed text of each trace and sidecar in a file."""
    plain = _uncompressed(io.BufferedReader(file, _PIECE_BYTES))
    with _guarded(path, plain):
        is_tar = plain.peek(512)[257:262] == b"ustar"
    if not is_tar:
        yield path, plain
        return
    with _guarded(path, plain), tarfile.open(fileobj=plain, mode="r|") as archive:
        for member in archive:
            name = f"{path}: {member.name}"
            if member.isfile() and member.name.endswith((".json", ".json.gz")):
                content = archive.extractfile(member)
                assert content is not None
                yield name, _uncompressed(io.BufferedReader(content))  # type: ignore[arg-type]
        # tarfile takes a header that is cut off for the end.
        while plain.read(_PIECE_BYTES):
            pass
        if plain.tell() % tarfile.BLOCKSIZE:
            raise tarfile.ReadError("it ends within a block")


def _uncompressed(file: io.BufferedReader) -> io.BufferedReader:
    if file.peek(2)[:2] != b"\x1f\x8b":
        return file
    return io.BufferedReader(gzip.GzipFile(fileobj=file), _PIECE_BYTES)


class _guarded:
    """Turns the errors of a damaged file into TraceErrors that name the place."""

    def __init__(self, path: str, content: IO[bytes]) -> None:
        self._path, self._content = path, content

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        damage = None
        if isinstance(error, EOFError | zlib.error | gzip.BadGzipFile):
            damage = "gzip data"
        elif isinstance(error, tarfile.ReadError):
            damage = "archive"
        if damage is not None:
            raise TraceError(
                f"{self._path}: after byte {self._content.tell()} of the uncompressed text: "
                f"damaged {damage} ({error}). Copy the file again, or record the trace again"
            ) from error
        if isinstance(error, Error):
            raise TraceError(str(error).removeprefix("trace: ")) from error


def _read_trace(path: str, content: IO[bytes]) -> Trace:
    reader = TraceReader(path)
    with _guarded(path, content):
        while piece := content.read(_PIECE_BYTES):
            reader.feed(piece)
        summary = reader.finish()
    try:
        # Values of other members may have what JSON forbids; they are not worth refusing a trace.
        metadata = json.loads(summary.pop("metadata_json"), strict=False)
    except ValueError:
        metadata = {}
    return Trace(path, [_step(step) for step in summary.pop("steps")], summary, metadata)


def _step(step: dict[str, Any]) -> Step:
    def named(names: Sequence[str], values: Sequence[int]) -> dict[str, int]:
        return dict(zip(names, values, strict=True))

    return Step(
        name=step["name"],
        begin_ns=step["span_ns"][0],
        end_ns=step["span_ns"][1],
        time_ns=named(KINDS, step["time_ns"]),
        loader_wait_ns=step["loader_wait_ns"],
        communication_ns=step["communication_ns"],
        sync_idle_ns=step["sync_idle_ns"],
        long_idle_ns=step["long_idle_ns"],
        to_device_ns=named(MEMORIES, step["to_device_ns"]),
        to_device_exposed_ns=named(MEMORIES, step["to_device_exposed_ns"]),
    )


def _read_sidecar(path: str, content: IO[bytes]) -> dict[str, Any]:
    try:
        sidecar = json.load(content)
    except ValueError as error:
        raise TraceError(f"{path}: not JSON ({error}). Remove it, or profile again") from error
    if not isinstance(sidecar, dict):
        raise TraceError(f"{path}: not an object. Remove it, or profile again")
    return sidecar


def _sidecar_name(path: str) -> str:
    """run.pt.trace.json(.gz) -> run.headrace.json."""
    stem = path.removesuffix(".gz").removesuffix(".json").removesuffix(".trace")
    return stem.removesuffix(".pt") + SIDECAR_SUFFIX


def _with_sidecar(trace: Trace, sidecar: dict[str, Any] | None) -> Trace:
    if sidecar is None:
        return trace
    return Trace(trace.path, trace.steps, trace.summary, trace.metadata, sidecar)
