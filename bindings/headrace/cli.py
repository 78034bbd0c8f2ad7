"""The command `headrace`: one module for each subcommand.

Such a module has SUMMARY, add_arguments(parser) and run(arguments), which returns the exit code or
raises CommandError.
"""

import argparse
import sys
import traceback
from collections.abc import Sequence

from headrace import __version__


class CommandError(Exception):
    """What keeps a command from doing its work, and the remedy: exit code 2."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: the arguments after the program's name; None: those of this process.

    Returns:
        The exit code: 0, 1 as the command defines it, 2 for errors, 130 after Ctrl-C.
    """
    from headrace import bench, compare, doctor, verify  # they need CommandError

    parser = argparse.ArgumentParser(
        prog="headrace", description="torch's DataLoader in C++: the same batches, bit for bit."
    )
    parser.add_argument("--version", action="version", version=f"headrace {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in {
        "verify": verify,
        "bench": bench,
        "doctor": doctor,
        "compare": compare,
    }.items():
        command = commands.add_parser(name, help=module.SUMMARY, description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    arguments = parser.parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except CommandError as error:
        print(f"headrace {arguments.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except Exception:  # 1, Python's own code for it, would say that the command had a result
        traceback.print_exc()
        return 2
    return code
