"""The files of an image folder, kept on disk from one start to the next.

A kept listing holds the stamps (inode, mtime, ctime) of all its directories, and is good as long as
none has changed. Two cases need care. A directory that was changed less than a tick of its clock
before it was listed may change again with the same stamp: the listing is then good only for those
who asked before it was made. And a link that led nowhere may lead somewhere later: such a listing
isn't kept at all.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace._core import __version__, list_image_folder

_FORMAT = 1
_DIGEST_SIZE = 32

# Of file systems' clocks; some count in seconds, FAT in steps of two.
_TICK_NS = 2_000_000_000

Stamp = tuple[int, int, int]


@dataclass
class ListedFolder:
    """The images of one directory: their names, in order."""

    path: str
    label: int
    stamp: Stamp
    names: str  # with "\0" between them


@dataclass
class Listing:
    """A listing of one image folder.

    Attributes:
        began_ns: when its making began, in nanoseconds since 1970.
    """

    classes: list[str]
    root: str
    root_stamp: Stamp
    folders: list[ListedFolder]
    began_ns: int

    @classmethod
    def of(cls, root: str, allow_empty: bool, cache: bool = True) -> "Listing":
        """The listing of `root` as it is now, a kept one if there is one that still holds.

        Raises:
            headrace.Error: it cannot be listed.
        """
        asked_ns = time.time_ns()
        file = _file_for(root, allow_empty) if cache else None
        if file is None:
            return cls._make(root, allow_empty)[0]
        found = cls._load(file, root)
        if found is not None and found._holds(asked_ns):
            return found
        with _locked(file):
            found = cls._load(file, root)  # somebody may have listed meanwhile
            if found is not None and found._holds(asked_ns):
                return found
            found, stable = cls._make(root, allow_empty)
            if stable:
                found._save(file)
            return found

    def samples(self) -> list[tuple[str, int]]:
        """(path, label) of every image, in torchvision's order."""
        samples: list[tuple[str, int]] = []
        for folder in self.folders:
            if folder.names:
                label, start = folder.label, os.path.join(folder.path, "")
                samples += [(start + name, label) for name in folder.names.split("\0")]
        return samples

    @classmethod
    def _make(cls, root: str, allow_empty: bool) -> tuple["Listing", bool]:
        began_ns = time.time_ns()
        classes, stamp, folders, stable = list_image_folder(root, allow_empty=allow_empty)
        listed = [ListedFolder(*folder) for folder in folders]
        return cls(classes, root, stamp, listed, began_ns), stable

    def _holds(self, asked_ns: int) -> bool:
        if self.began_ns >= asked_ns:
            return True
        stamps = [(self.root, self.root_stamp)]
        stamps += [(folder.path, folder.stamp) for folder in self.folders]
        return all(
            stamp[1] < self.began_ns - _TICK_NS and _stamp_of(path) == stamp
            for path, stamp in stamps
        )

    # --- on disk --------------------------------------------------------------------------------

    def _save(self, file: Path) -> None:
        """Replaces the file as a whole, or leaves it: a disk may be full or read-only."""
        header = {
            "classes": self.classes,
            "root_stamp": self.root_stamp,
            "began_ns": self.began_ns,
            "folders": [[folder.path, folder.label, folder.stamp] for folder in self.folders],
        }
        # JSON escapes what is no Unicode, and has no line breaks: a slash separates the names.
        names = "/".join(folder.names for folder in self.folders)
        body = json.dumps(header).encode() + b"\n" + os.fsencode(names)
        temporary = None
        try:
            with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as out:
                temporary = out.name
                out.write(hashlib.sha256(body).digest() + body)
            os.replace(temporary, file)
        except OSError:
            if temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)

    @classmethod
    def _load(cls, file: Path, root: str) -> "Listing | None":
        try:
            content = file.read_bytes()
        except OSError:
            return None
        digest, body = content[:_DIGEST_SIZE], content[_DIGEST_SIZE:]
        if hashlib.sha256(body).digest() != digest:
            return None
        end = body.index(b"\n")
        header: dict[str, Any] = json.loads(body[:end])
        names = os.fsdecode(body[end + 1 :]).split("/")
        folders = [
            ListedFolder(path, label, (stamp[0], stamp[1], stamp[2]), name)
            for (path, label, stamp), name in zip(header["folders"], names, strict=True)
        ]
        inode, modified, changed = header["root_stamp"]
        return cls(header["classes"], root, (inode, modified, changed), folders, header["began_ns"])


def _stamp_of(path: str) -> Stamp | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _file_for(root: str, allow_empty: bool) -> Path | None:
    """Where the listing is kept; None where nothing can be kept."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(base):
        return None
    folder = Path(base) / "headrace"
    try:
        # The spelling counts, since the samples' paths begin with it; and where it leads.
        what = [_FORMAT, __version__, root, os.path.abspath(root), allow_empty]
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    key = hashlib.sha256(json.dumps(what).encode()).hexdigest()
    return folder / f"listing-{key[:32]}"


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """One process at a time, where the file system can; the kernel lets go when a process dies."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            lock = stack.enter_context(open(f"{file}.lock", "ab"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
