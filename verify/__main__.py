"""`python -m verify gate|diagnosis`."""

from __future__ import annotations

import sys

from llama32_1b.cli import begin_process
from verify.cli import main

if __name__ == "__main__":
    begin_process()
    sys.exit(main())
