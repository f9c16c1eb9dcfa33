"""`python -m board doctor`."""

from __future__ import annotations

import sys

from board.cli import main
from llama32_1b.cli import begin_process

if __name__ == "__main__":
    begin_process()
    sys.exit(main())
