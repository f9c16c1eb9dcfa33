"""`python -m verify gate|diagnosis`."""

from __future__ import annotations

import sys

from llama32_1b.cli import use_utf8
from verify.cli import main

if __name__ == "__main__":
    use_utf8()
    sys.exit(main())
