"""The command ``mrboost``, and ``python -m mrboost``: it answers Ctrl-C from
its first moment on."""

import sys


def main() -> int:
    """Load the commands, which takes a second, and run one; the exit status."""
    try:
        from .cli.commands import main as run

        return run()
    except KeyboardInterrupt:
        print("\nmrboost: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
