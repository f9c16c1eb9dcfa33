"""`python -m board doctor`."""

from __future__ import annotations

import sys

from board.cli import main
from llama32_1b.cli import use_utf8

if __name__ == "__main__":
    use_utf8()
    sys.exit(main())
