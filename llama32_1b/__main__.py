"""`python -m llama32_1b compile|run|chat|profile|mlir`."""

from __future__ import annotations

import signal
import sys

from llama32_1b.cli import main, use_utf8


def end_as_at_ctrl_c() -> None:
    """`kill`, and a terminal that closes, stop what Ctrl-C stops: compilers, which do not end with us."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP, and that stays
            signal.signal(number, signal.default_int_handler)


if __name__ == "__main__":
    use_utf8()
    end_as_at_ctrl_c()
    sys.exit(main())
