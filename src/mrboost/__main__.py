"""``python -m mrboost``, the same as the command ``mrboost``."""

import sys

from .cli import main

sys.exit(main())
