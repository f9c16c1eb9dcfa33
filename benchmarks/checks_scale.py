# ruff: noqa: E501 - MLIR has long lines
"""How checks scale: three programs by their number of transfers, launch points, and launches.

    python -m benchmarks.checks_scale [transfers N] [points N] [launches N]

Without arguments: 1,000,000 transfers, 4,096 points, 100 launches. Each runs in a process of its own, on as
many threads as VNPU_THREADS says, and prints seconds, CPU seconds, and the peak of its memory. Builds take
nothing from the store.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from aerie import virtual_npu
from aerie.virtual_npu import arrays

SIZES = {"transfers": 1_000_000, "points": 4096, "launches": 100}


def transfers(count: int) -> str:
    """A core that adds 1 to blocks of 64 numbers: a launch sends half of the transfers, and takes the rest."""
    return _transfers("transfers", count, _loop(_PUT, _GET))


def apart(count: int) -> str:
    """The same with all puts before all gets, so that nothing but the puts can be issued at first."""
    return _transfers("apart", count, _loop(_PUT) + _loop(_GET))


_PUT = "air.channel.put @in[] (%a[%at] [%c64] [%c1]) : (memref<65536xi32>)"
_GET = "air.channel.get @out[] (%b[%at] [%c64] [%c1]) : (memref<65536xi32>)"


def _loop(*lines: str) -> str:
    body = "\n        ".join(lines)
    return f"""
      scf.for %i = %c0 to %half step %c1 {{
        %at = affine.apply #at()[%i]
        {body}
      }}"""


def _transfers(name: str, count: int, loops: str) -> str:
    block, numbers = "memref<64xi32, 2>", "memref<65536xi32>"
    return f"""
#at = affine_map<()[s0] -> ((s0 mod 1024) * 64)>
module {{
  air.channel @in []
  air.channel @out []
  func.func @{name}(%x: {numbers}, %y: {numbers}) {{
    air.launch () in () args(%a=%x, %b=%y) : {numbers}, {numbers} {{
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c64 = arith.constant 64 : index
      %half = arith.constant {count // 2} : index{loops}
      air.segment @s args(%n=%half) : index {{
        %c1_0 = arith.constant 1 : index
        air.herd @h tile (%tx, %ty) in (%sx=%c1_0, %sy=%c1_0) args(%m=%n) : index {{
          %c0_1 = arith.constant 0 : index
          %c1_1 = arith.constant 1 : index
          %one = arith.constant dense<1> : vector<64xi32>
          scf.for %i = %c0_1 to %m step %c1_1 {{
            %l = memref.alloc() : {block}
            air.channel.get @in[] (%l[] [] []) : ({block})
            %v = vector.load %l[%c0_1] : {block}, vector<64xi32>
            %w = arith.addi %v, %one : vector<64xi32>
            vector.store %w, %l[%c0_1] : {block}, vector<64xi32>
            air.channel.put @out[] (%l[] [] []) : ({block})
            memref.dealloc %l : {block}
          }}
        }}
      }}
    }}
    return
  }}
}}
"""


def _constants(*numbers: int) -> str:
    return "\n          ".join(f"%c{number} = arith.constant {number} : index" for number in numbers)


def _convolve(weights: str, part: str, row: str) -> str:
    """What a core computes: its pixels of a row from three rows of the image."""
    return f"""scf.for %p = %c0 to %c8 step %c1 {{
            vector.store %zeros, %ly[%p, %c0] : {row}, vector<16xf32>
            scf.for %u = %c0 to %c3 step %c1 {{
              scf.for %v = %c0 to %c3 step %c1 {{
                %q = arith.addi %p, %v : index
                scf.for %m = %c0 to %c16 step %c1 {{
                  %s = memref.load %lx[%u, %q, %m] : {part}
                  %s16 = vector.broadcast %s : f32 to vector<16xf32>
                  %t = vector.load %lk[%u, %v, %m, %c0] : {weights}, vector<16xf32>
                  %sum = vector.load %ly[%p, %c0] : {row}, vector<16xf32>
                  %next = vector.fma %s16, %t, %sum : vector<16xf32>
                  vector.store %next, %ly[%p, %c0] : {row}, vector<16xf32>
                }}
              }}
            }}
          }}"""


def points(count: int, order: str = "async") -> str:
    """A 3 x 3 convolution of 16 channels to 64, one row of 32 pixels a launch point.

    Each of 16 cores has 8 pixels and 16 channels.
    """
    image, kernel = f"memref<{count + 2}x34x16xf32>", "memref<4x3x3x16x16xf32>"
    result = f"memref<{count}x32x64xf32>"
    part, weights, row = "memref<3x10x16xf32, 2>", "memref<3x3x16x16xf32, 2>", "memref<8x16xf32, 2>"
    return f"""
#pixel = affine_map<()[s0] -> (s0 * 8)>
module {{
  func.func @points(%x: {image}, %w: {kernel}, %y: {result}) {{
    %rows = arith.constant {count} : index
    %token = air.launch {order} (%i) in (%n=%rows) args(%a=%x, %b=%w, %c=%y) : {image}, {kernel}, {result} {{
      air.segment @s args(%i_1=%i, %a_1=%a, %b_1=%b, %c_1=%c) : index, {image}, {kernel}, {result} {{
        %c4 = arith.constant 4 : index
        air.herd @h tile (%tx, %ty) in (%sx=%c4, %sy=%c4) args(%j=%i_1, %in=%a_1, %k=%b_1, %out=%c_1) : index, {image}, {kernel}, {result} {{
          {_constants(0, 1, 3, 8, 9, 10, 16, 32, 34, 64, 256, 544, 2048, 2304)}
          %first = affine.apply #pixel()[%tx]
          %zeros = arith.constant dense<0.0> : vector<16xf32>
          %lk = memref.alloc() : {weights}
          %lx = memref.alloc() : {part}
          %ly = memref.alloc() : {row}
          %channel = arith.muli %ty, %c16 : index
          %t0 = air.dma_memcpy_nd async (%lk[] [] [], %k[%ty, %c0, %c0] [%c1, %c9, %c256] [%c2304, %c256, %c1]) : ({weights}, {kernel})
          %t1 = air.dma_memcpy_nd async [%t0] (%lx[] [] [], %in[%j, %first, %c0] [%c3, %c10, %c16] [%c544, %c16, %c1]) : ({part}, {image})
          air.wait_all [%t0, %t1]
          {_convolve(weights, part, row)}
          air.dma_memcpy_nd (%out[%j, %first, %channel] [%c1, %c8, %c16] [%c2048, %c64, %c1], %ly[] [] []) : ({result}, {row})
          memref.dealloc %lk : {weights}
          memref.dealloc %lx : {part}
          memref.dealloc %ly : {row}
        }}
      }}
    }}
    air.wait_all [%token]
    return
  }}
}}
"""


def launches(count: int) -> str:
    """Launches that differ: each adds another vector to another part of the argument."""
    numbers, block = f"memref<{count * 128}xf32>", "memref<64xf32, 2>"
    bodies = "\n".join(_launch(number, numbers, block) for number in range(count))
    return f"""
module {{
  func.func @launches(%x: {numbers}, %y: {numbers}) {{
{bodies}
    return
  }}
}}
"""


def _launch(number: int, numbers: str, block: str) -> str:
    return f"""
    air.launch () in () args(%a=%x, %b=%y) : {numbers}, {numbers} {{
      air.segment @s{number} args(%a_1=%a, %b_1=%b) : {numbers}, {numbers} {{
        %c1 = arith.constant 1 : index
        %c2 = arith.constant 2 : index
        air.herd @h{number} tile (%tx, %ty) in (%sx=%c2, %sy=%c1) args(%in=%a_1, %out=%b_1) : {numbers}, {numbers} {{
          %c0 = arith.constant 0 : index
          %c1_1 = arith.constant 1 : index
          %c16 = arith.constant 16 : index
          %c64 = arith.constant 64 : index
          %base = arith.constant {number * 128} : index
          %mine = arith.muli %tx, %c64 : index
          %at = arith.addi %base, %mine : index
          %more = arith.constant dense<{number}.0> : vector<16xf32>
          %l = memref.alloc() : {block}
          air.dma_memcpy_nd (%l[] [] [], %in[%at] [%c64] [%c1_1]) : ({block}, {numbers})
          scf.for %i = %c0 to %c64 step %c16 {{
            %v = vector.load %l[%i] : {block}, vector<16xf32>
            %w = arith.addf %v, %more : vector<16xf32>
            vector.store %w, %l[%i] : {block}, vector<16xf32>
          }}
          air.dma_memcpy_nd (%out[%at] [%c64] [%c1_1], %l[] [] []) : ({numbers}, {block})
          memref.dealloc %l : {block}
        }}
      }}
    }}"""


PROGRAMS: dict[str, Callable[[int], str]] = {
    "transfers": transfers,
    "apart": apart,
    "points": points,
    "launches": launches,
}


def measure(name: str, size: int) -> None:
    """Build and run one program in this process; print seconds, CPU seconds of all threads, and peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        path, started = Path(folder) / f"{name}.so", _Clock()
        options = virtual_npu.BuildOptions(checks=True)
        virtual_npu.build(PROGRAMS[name](size), path, options=options, use_cache=False)
        built = str(started)
        before = _peak_bytes()
        library = virtual_npu.Library(path)
        entry = library.entries[name]
        values = arrays.random_arrays(entry, 1)
        began = _Clock()
        arrays.run_entry(library, entry, values)
        print(
            f"{name:10} {size:9,} built in {built}, run in {began}, "
            f"peak {_peak_bytes() / 1e6:6.0f} MB ({before / 1e6:.0f} before the run)",
            flush=True,
        )


class _Clock:
    """What has passed since it was made, of this process and the compilers that it started."""

    def __init__(self) -> None:
        self.wall_s, self.cpu_s = time.perf_counter(), self._cpu_s()

    def __str__(self) -> str:
        return f"{time.perf_counter() - self.wall_s:6.2f} s ({self._cpu_s() - self.cpu_s:.2f} s CPU)"

    @staticmethod
    def _cpu_s() -> float:
        return sum(os.times()[:4])


def _peak_bytes() -> int:
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def main(words: Sequence[str]) -> None:
    """Measure what `words` names, each in a process of its own."""
    if words[:1] == ["--here"]:
        return measure(words[1], int(words[2]))
    wanted = dict(zip(words[::2], map(int, words[1::2]), strict=True)) or SIZES
    for name, size in wanted.items():
        subprocess.run(
            [sys.executable, "-m", __package__ + ".checks_scale", "--here", name, str(size)], check=True
        )


if __name__ == "__main__":
    main(sys.argv[1:])
