"""The lit suite: `make lit`, or `lit -v tests/lit`. lit defines `config` and `lit_config`.

-D refresh=1 writes golden texts anew; -D slow=1 also runs what takes minutes; -D board=0 leaves a board
alone that is there; -D out=DIR is where outputs go (default: build/lit). Built programs are kept in
build/test-cache, as pytest's are. Features are decided in support/features.py.
"""

# ruff: noqa: F821, E402

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import lit.formats

SUPPORT = Path(__file__).resolve().parent / "support"
PROJECT = SUPPORT.parents[2]
sys.path[:0] = [str(PROJECT), str(SUPPORT)]

from features import available, forwarded, summary

refresh, slow = (lit_config.params.get(name) == "1" for name in ("refresh", "slow"))
board = lit_config.params.get("board") != "0"
out = Path(lit_config.params.get("out", PROJECT / "build" / "lit")).resolve()
cache = PROJECT / "build" / "test-cache"
python = sys.executable

config.name = "aerie"
config.test_format = lit.formats.ShTest()
config.suffixes = [".mlir", ".test"]
config.test_source_root = str(SUPPORT.parent)
config.test_exec_root = str(out)
lit_config.parallelism_groups["npu"] = 1
features = available(os.environ, slow, board)
lit_config.note(summary(features))
config.available_features |= features

config.environment |= forwarded(os.environ)
config.environment["PATH"] = os.pathsep.join([str(Path(python).parent), os.environ["PATH"]])
config.environment["PYTHONPATH"] = os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])
config.environment["VNPU_OPT"] = "0"  # these programs are small: compiling them takes longer than running
config.environment["VNPU_CACHE"] = str(cache)


def warm_aerie() -> str:
    """The start of a command line that means `aerie`, run by a process that ends with this one."""
    path = Path(tempfile.mkdtemp(prefix="aerie-lit-")) / "socket"
    atexit.register(shutil.rmtree, path.parent, ignore_errors=True)
    warm = SUPPORT / "warm.py"
    server = subprocess.Popen(
        [python, str(warm), "serve", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **config.environment},
    )
    server.stdout.readline()
    atexit.register(server.communicate)  # its standard input ends with this process, and it with that
    return f"{python} -ISE {warm} {path}"


aerie = warm_aerie()
config.substitutions += [
    ("%python", python),
    ("%project", str(PROJECT)),
    ("%air", f"{aerie} air"),
    ("%vnpu", f"{aerie} vnpu"),
    ("%kernels", f"{aerie} kernels"),
    ("%programs", f"{aerie} programs"),
    ("%golden", f"{python} {SUPPORT / 'golden.py'}{' --refresh' if refresh else ''}"),
    ("%board", f"{python} -m aerie"),
    ("%against_reference", f"{python} {SUPPORT / 'against_reference.py'} --cache-dir {cache / 'programs'}"),
]
