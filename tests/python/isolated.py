"""Runs functions of test modules in processes of their own: for exits, forks, signals and leaks.

The processes are forked from one that has imported torch and headrace and has no threads, so that
each costs milliseconds. Each then runs to its end as any script does, the interpreter's
finalization included. One that takes too long shows the stacks of its threads and is killed.

Run as a program this module is that process. In memory that is freed there lies a pattern
(MALLOC_PERTURB_), so that a use after it shows; leaked files and sockets are errors (-X dev).
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


class Isolator:
    """The client's side."""

    def __init__(self) -> None:
        environment = dict(
            os.environ,
            OMP_NUM_THREADS="1",
            MALLOC_PERTURB_="165",
            PYTHONMALLOC="pymalloc",  # the checking one of -X dev makes every end take seconds
        )
        options = ["-X", "dev", "-W", "error::ResourceWarning", "-W", "ignore::DeprecationWarning"]
        self._server = subprocess.Popen(
            [sys.executable, *options, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # select() must see what has not been read
            env=environment,
        )

    def __call__(
        self, function: Callable[..., Any], *arguments: Any, status: int = 0, timeout_s: float = 100
    ) -> str:
        """Runs function(*arguments) and returns what the process printed.

        Args:
            function: of a module in this folder, at its top level.
            arguments: such as JSON can carry; paths become strings.
            status: the exit status that is expected; minus the signal's number, if one kills it.
        """
        with tempfile.NamedTemporaryFile("r", errors="replace") as output:
            job = [function.__module__, function.__name__, [*map(plain, arguments)], output.name]
            self._send(json.dumps(job))
            pid = int(self._receive(60))  # the first also waits for torch's import
            try:
                found = int(self._receive(timeout_s))
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGABRT)  # faulthandler prints the stacks
                    time.sleep(1)
                    os.killpg(pid, signal.SIGKILL)
                self._receive(60)
                raise AssertionError(f"no end after {timeout_s} s:\n{output.read()}") from None
            text = output.read()
        assert found == status, f"exit status {found} instead of {status}:\n{text}"
        assert "ResourceWarning" not in text, text
        return text

    def close(self) -> None:
        self._server.communicate(timeout=10)

    def _send(self, line: str) -> None:
        self._server.stdin.write(line.encode() + b"\n")

    def _receive(self, timeout_s: float) -> bytes:
        if not select.select([self._server.stdout], [], [], timeout_s)[0]:
            raise TimeoutError
        return self._server.stdout.readline()


def plain(argument: Any) -> Any:
    return str(argument) if isinstance(argument, Path) else argument


def serve() -> tuple[Callable[..., Any], list[Any]]:
    """Forks a process for each job. Returns in those, with what is to be run."""
    for line in sys.stdin:
        module, name, arguments, output = json.loads(line)
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            become(output)
            return getattr(importlib.import_module(module), name), arguments
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    sys.exit()


def become(output: str) -> None:
    os.setpgid(0, 0)
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # A test run in the background ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    importlib.import_module("lifetime").warm_up()
    gc.collect()
    gc.freeze()  # what is there now need not be looked at in every process
    function, arguments = serve()
    function(*arguments)
