"""``python -m mrboost``, and the command ``mrboost``."""

import sys

from mrboost.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
