# ruff: noqa: E501 - MLIR has long lines
"""Programs for the memory checks: each with exactly one fault, and some without any that look like it.

`// fault` marks the operation that is at fault and `// made` the allocation it uses; messages are compared whole,
with the lines of the two.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    kind: str
    message: str
    body: str
    arguments: str = "%n: index, %out: memref<1xf32>"


def in_herd(body: str) -> str:
    """A body in a herd of two tiles, which has %n and %out."""
    return f"""
    air.herd @h tile (%tx, %ty) in (%sx=%c2, %sy=%c1) args(%n_h=%n, %out_h=%out) : index, memref<1xf32> {{
      {body}
    }}"""


FAULTS = {
    # ---- outside: per dimension ----
    "load_of_a_tile": Fault(
        "outside",
        "line {fault}: memref.load in herd @h (1, 0): index 64 of dimension 0 is outside memref<64xf32, 2> %buf (allocated at line {made}): legal are 0 to 63",
        in_herd("""
      %f = arith.constant 1.0 : f32
      %i = arith.muli %tx, %c64 : index
      %buf = memref.alloc() : memref<64xf32, 2> // made
      linalg.fill ins(%f : f32) outs(%buf : memref<64xf32, 2>)
      %v = memref.load %buf[%i] : memref<64xf32, 2> // fault
      memref.dealloc %buf : memref<64xf32, 2>"""),
    ),
    "store_in_the_row_above": Fault(
        "outside",
        "line {fault}: memref.store: index -5 of dimension 1 is outside memref<4x8xf32> %buf (allocated at line {made}): legal are 0 to 7",
        """
    %f = arith.constant 1.0 : f32
    %j = arith.subi %c0, %n : index
    %buf = memref.alloc() : memref<4x8xf32> // made
    memref.store %f, %buf[%c1, %j] : memref<4x8xf32> // fault
    memref.dealloc %buf : memref<4x8xf32>""",
    ),
    "load_through_a_view": Fault(
        "outside",
        "line {fault}: memref.load: index 5 of dimension 0 is outside memref<4xf32, strided<[1], offset: 2>> %half (allocated at line {made}): legal are 0 to 3",
        """
    %f = arith.constant 1.0 : f32
    %buf = memref.alloc() : memref<8xf32> // made
    linalg.fill ins(%f : f32) outs(%buf : memref<8xf32>)
    %half = memref.subview %buf[2] [4] [1] : memref<8xf32> to memref<4xf32, strided<[1], offset: 2>>
    %v = memref.load %half[%n] : memref<4xf32, strided<[1], offset: 2>> // fault
    memref.dealloc %buf : memref<8xf32>""",
    ),
    "affine_store": Fault(
        "outside",
        "line {fault}: affine.store: index 10 of dimension 0 is outside memref<8xf32> %buf (allocated at line {made}): legal are 0 to 7",
        """
    %f = arith.constant 1.0 : f32
    %buf = memref.alloc() : memref<8xf32> // made
    affine.store %f, %buf[%n * 2] : memref<8xf32> // fault
    memref.dealloc %buf : memref<8xf32>""",
    ),
    "in_a_loop": Fault(
        "outside",
        "line {fault}: memref.store: index 4 of dimension 0 is outside memref<4xf32> %buf (allocated at line {made}): legal are 0 to 3",
        """
    %f = arith.constant 1.0 : f32
    %buf = memref.alloc() : memref<4xf32> // made
    linalg.fill ins(%f : f32) outs(%buf : memref<4xf32>)
    scf.for %i = %c0 to %n step %c1 {
      memref.store %f, %buf[%i] : memref<4xf32> // fault
    }
    memref.dealloc %buf : memref<4xf32>""",
    ),
    "vector_over_the_end_of_a_row": Fault(
        "outside",
        "line {fault}: vector.load: index 5 to 12 of dimension 1 is outside memref<4x12xf32> %buf (allocated at line {made}): legal are 0 to 11",
        """
    %f = arith.constant 1.0 : f32
    %buf = memref.alloc() : memref<4x12xf32> // made
    linalg.fill ins(%f : f32) outs(%buf : memref<4x12xf32>)
    %v = vector.load %buf[%c0, %n] : memref<4x12xf32>, vector<8xf32> // fault
    memref.dealloc %buf : memref<4x12xf32>""",
    ),
    "transfer_that_is_not_in_bounds": Fault(
        "outside",
        "line {fault}: vector.transfer_write: index 5 to 12 of dimension 0 is outside memref<12xf32> %buf (allocated at line {made}): legal are 0 to 11",
        """
    %v = arith.constant dense<1.0> : vector<8xf32>
    %buf = memref.alloc() : memref<12xf32> // made
    vector.transfer_write %v, %buf[%n] {in_bounds = [true]} : vector<8xf32>, memref<12xf32> // fault
    memref.dealloc %buf : memref<12xf32>""",
    ),
    "transfer_from_before_the_beginning": Fault(
        "outside",
        "line {fault}: vector.transfer_read: index -5 of dimension 0 is outside memref<12xf32> %buf (allocated at line {made}): legal are 0 to 11",
        """
    %f = arith.constant 1.0 : f32
    %i = arith.subi %c0, %n : index
    %buf = memref.alloc() : memref<12xf32> // made
    linalg.fill ins(%f : f32) outs(%buf : memref<12xf32>)
    %v = vector.transfer_read %buf[%i], %f : memref<12xf32>, vector<8xf32> // fault
    memref.dealloc %buf : memref<12xf32>""",
    ),
    "lane_that_is_on": Fault(
        "outside",
        "line {fault}: vector.maskedstore: index 8 of dimension 0 is outside memref<8xf32> %buf (allocated at line {made}): legal are 0 to 7",
        """
    %v = arith.constant dense<1.0> : vector<8xf32>
    %m = vector.create_mask %n : vector<8xi1>
    %buf = memref.alloc() : memref<8xf32> // made
    vector.maskedstore %buf[%c4], %m, %v : memref<8xf32>, vector<8xi1>, vector<8xf32> // fault
    memref.dealloc %buf : memref<8xf32>""",
    ),
    "subview": Fault(
        "outside",
        "line {fault}: memref.subview: index 5 to 8 of dimension 0 is outside memref<8xf32> %buf (allocated at line {made}): legal are 0 to 7",
        """
    %buf = memref.alloc() : memref<8xf32> // made
    %s = memref.subview %buf[%n] [4] [1] : memref<8xf32> to memref<4xf32, strided<[1], offset: ?>> // fault
    memref.dealloc %buf : memref<8xf32>""",
    ),
    "reinterpret_cast": Fault(
        "outside",
        "line {fault}: memref.load: reads elements 20 to 20 of %buf (memref<16xf32>, allocated at line {made}), which has elements 0 to 15",
        """
    %f = arith.constant 1.0 : f32
    %buf = memref.alloc() : memref<16xf32> // made
    linalg.fill ins(%f : f32) outs(%buf : memref<16xf32>)
    %wide = memref.reinterpret_cast %buf to offset: [0], sizes: [5, 5], strides: [5, 1] : memref<16xf32> to memref<5x5xf32, strided<[5, 1]>>
    %v = memref.load %wide[%c4, %c0] : memref<5x5xf32, strided<[5, 1]>> // fault
    memref.dealloc %buf : memref<16xf32>""",
    ),
    "dma": Fault(
        "outside",
        "line {fault}: air.dma_memcpy_nd in herd @h (1, 0): the access pattern reaches elements 4 to 11 of %x (memref<8xf32>, argument 1 of @dma at line {entry}): legal are 0 to 7",
        """
    air.herd @h tile (%tx, %ty) in (%sx=%c2, %sy=%c1) args(%x_h=%x) : memref<8xf32> {
      %at = arith.muli %tx, %c4 : index
      %buf = memref.alloc() : memref<8xf32, 2>
      air.dma_memcpy_nd (%buf[] [] [], %x_h[%at] [%c8] [%c1]) : (memref<8xf32, 2>, memref<8xf32>) // fault
      memref.dealloc %buf : memref<8xf32, 2>
    }""",
        "%n: index, %x: memref<8xf32>",
    ),
    "extents_that_differ": Fault(
        "outside",
        "line {fault}: linalg.generic: dimension 0 of %y: memref<?xf32> has 4 elements, and another operand has 5",
        """
    %f = arith.constant 1.0 : f32
    %x = memref.alloc(%n) : memref<?xf32>
    %y = memref.alloc(%c4) : memref<?xf32>
    linalg.fill ins(%f : f32) outs(%x : memref<?xf32>)
    linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : memref<?xf32>) outs(%y : memref<?xf32>) { // fault
    ^bb0(%a: f32, %b: f32):
      linalg.yield %a : f32
    }
    memref.dealloc %x : memref<?xf32>
    memref.dealloc %y : memref<?xf32>""",
    ),
    # ---- read before anything wrote it ----
    "load_of_nothing": Fault(
        "uninitialised",
        "line {fault}: memref.load in herd @h (0, 0): reads element [3, 0] of %acc (memref<8x8xf32, 2>, allocated at line {made}) before anything wrote it: 24 of its 64 elements are written",
        in_herd("""
      %f = arith.constant 1.0 : f32
      %acc = memref.alloc() : memref<8x8xf32, 2> // made
      %top = memref.subview %acc[0, 0] [3, 8] [1, 1] : memref<8x8xf32, 2> to memref<3x8xf32, strided<[8, 1]>, 2>
      linalg.fill ins(%f : f32) outs(%top : memref<3x8xf32, strided<[8, 1]>, 2>)
      %v = memref.load %acc[%c3, %c0] : memref<8x8xf32, 2> // fault
      memref.dealloc %acc : memref<8x8xf32, 2>"""),
    ),
    "loop_over_nothing": Fault(
        "uninitialised",
        "line {fault}: vector.transfer_read: reads element [8] of %buf (memref<16xf32>, allocated at line {made}) before anything wrote it: 8 of its 16 elements are written",
        """
    %f = arith.constant 1.0 : f32
    %v = arith.constant dense<1.0> : vector<8xf32>
    %buf = memref.alloc() : memref<16xf32> // made
    vector.store %v, %buf[%c0] : memref<16xf32>, vector<8xf32>
    %sum = scf.for %i = %c0 to %c16 step %c8 iter_args(%acc = %v) -> (vector<8xf32>) {
      %x = vector.transfer_read %buf[%i], %f {in_bounds = [true]} : memref<16xf32>, vector<8xf32> // fault
      %y = arith.addf %acc, %x : vector<8xf32>
      scf.yield %y : vector<8xf32>
    }
    vector.store %sum, %buf[%c0] : memref<16xf32>, vector<8xf32>
    memref.dealloc %buf : memref<16xf32>""",
    ),
    "loop_beyond_what_is_written": Fault(
        "uninitialised",
        "line {fault}: affine.load: reads element [4] of %buf (memref<16xf32>, allocated at line {made}) before anything wrote it: 4 of its 16 elements are written",
        """
    %f = arith.constant 1.0 : f32
    %buf = memref.alloc() : memref<16xf32> // made
    scf.for %i = %c0 to %c4 step %c1 {
      memref.store %f, %buf[%i] : memref<16xf32>
    }
    affine.for %i = 0 to %n {
      %v = affine.load %buf[%i] : memref<16xf32> // fault
      affine.store %v, %out[0] : memref<1xf32>
    }
    memref.dealloc %buf : memref<16xf32>""",
    ),
    "loop_that_leaves_its_buffer_late": Fault(
        "outside",
        "line {fault}: vector.load: index 9 to 16 of dimension 0 is outside memref<16xf32> %buf (allocated at line {made}): legal are 0 to 15",
        """
    %f = arith.constant 1.0 : f32
    %buf = memref.alloc() : memref<16xf32> // made
    linalg.fill ins(%f : f32) outs(%buf : memref<16xf32>)
    scf.for %i = %c0 to %n step %c1 {
      %at = arith.muli %i, %c3 : index
      %v = vector.load %buf[%at] : memref<16xf32>, vector<8xf32> // fault
      vector.store %v, %buf[%i] : memref<16xf32>, vector<8xf32>
    }
    memref.dealloc %buf : memref<16xf32>""",
    ),
    "dma_of_a_gap": Fault(
        "uninitialised",
        "line {fault}: memref.load in herd @h (0, 0): reads element [2] of %to (memref<4xf32, 2>, allocated at line {made}) before anything wrote it: 2 of its 4 elements are written",
        in_herd("""
      %f = arith.constant 1.0 : f32
      %from = memref.alloc() : memref<2x4xf32, 2>
      %to = memref.alloc() : memref<4xf32, 2> // made
      %flat = memref.collapse_shape %from [[0, 1]] : memref<2x4xf32, 2> into memref<8xf32, 2>
      scf.for %i = %c0 to %c6 step %c1 {
        memref.store %f, %flat[%i] : memref<8xf32, 2>
      }
      air.dma_memcpy_nd (%to[] [] [], %from[%c0] [%c2, %c2] [%c6, %c1]) : (memref<4xf32, 2>, memref<2x4xf32, 2>)
      %v = memref.load %to[%c2] : memref<4xf32, 2> // fault
      memref.dealloc %from : memref<2x4xf32, 2>
      memref.dealloc %to : memref<4xf32, 2>"""),
    ),
    "put_of_nothing_to_a_tile_that_waits": Fault(
        "uninitialised",
        "line {fault}: memref.load in herd @h (0, 0): reads element [2] of %from (memref<4xf32, 2>, allocated at line {made}) before anything wrote it: 2 of its 4 elements are written",
        in_herd("""
      %f = arith.constant 1.0 : f32
      %from = memref.alloc() : memref<4xf32, 2> // made
      %begin = memref.subview %from[0] [2] [1] : memref<4xf32, 2> to memref<2xf32, strided<[1]>, 2>
      linalg.fill ins(%f : f32) outs(%begin : memref<2xf32, strided<[1]>, 2>)
      %is_first = arith.cmpi eq, %tx, %c0 : index
      scf.if %is_first {
        air.channel.get @c[] (%from[] [] []) : (memref<4xf32, 2>)
        %v = memref.load %from[%c2] : memref<4xf32, 2> // fault
      } else {
        air.channel.put @c[] (%from[] [] []) : (memref<4xf32, 2>)
      }
      memref.dealloc %from : memref<4xf32, 2>"""),
    ),
    "buffer_of_another_tile": Fault(
        "deadlock",
        "deadlock: nothing can make progress. This one waits for what only it could do later:\n  herd @h (0, 0), line {fault}: get @\"%mine (line {made}) is free\"[0, 1] (2 put so far, 0 in flight), until a put comes",
        """
    air.launch () in () {
      air.segment @s {
        %mine = memref.alloc() : memref<2x2xf32, 2> // made
        air.herd @h tile (%tx, %ty) in (%sx=%c2, %sy=%c1) args(%m=%mine) : memref<2x2xf32, 2> { // fault
          %f = arith.constant 1.0 : f32
          %is_first = arith.cmpi eq, %tx, %c0 : index
          scf.if %is_first {
            memref.store %f, %m[%c0, %c1] : memref<2x2xf32, 2>
          }
          %v = memref.load %m[%c0, %c1] : memref<2x2xf32, 2>
        }
        memref.dealloc %mine : memref<2x2xf32, 2>
      }
    }""",
    ),
    "accumulator_that_nobody_cleared": Fault(
        "uninitialised",
        "line {fault}: linalg.matmul: reads element [0, 0] of %c (memref<4x4xf32>, allocated at line {made}) before anything wrote it: 0 of its 16 elements are written",
        """
    %f = arith.constant 1.0 : f32
    %a = memref.alloc() : memref<4x4xf32>
    %c = memref.alloc() : memref<4x4xf32> // made
    linalg.fill ins(%f : f32) outs(%a : memref<4x4xf32>)
    linalg.matmul ins(%a, %a : memref<4x4xf32>, memref<4x4xf32>) outs(%c : memref<4x4xf32>) // fault
    memref.dealloc %a : memref<4x4xf32>
    memref.dealloc %c : memref<4x4xf32>""",
    ),
    "window_of_a_pooling": Fault(
        "uninitialised",
        "line {fault}: linalg.generic: reads element [4] of %x (memref<5xf32>, allocated at line {made}) before anything wrote it: 4 of its 5 elements are written",
        """
    %f = arith.constant 1.0 : f32
    %x = memref.alloc() : memref<5xf32> // made
    %w = memref.alloc() : memref<2xf32>
    %y = memref.alloc() : memref<4xf32>
    linalg.fill ins(%f : f32) outs(%w : memref<2xf32>)
    linalg.fill ins(%f : f32) outs(%y : memref<4xf32>)
    %begin = memref.subview %x[0] [4] [1] : memref<5xf32> to memref<4xf32, strided<[1]>>
    linalg.fill ins(%f : f32) outs(%begin : memref<4xf32, strided<[1]>>)
    linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0 + d1)>, affine_map<(d0, d1) -> (d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]} ins(%x, %w : memref<5xf32>, memref<2xf32>) outs(%y : memref<4xf32>) { // fault
    ^bb0(%a: f32, %b: f32, %c: f32):
      %d = arith.addf %a, %c : f32
      linalg.yield %d : f32
    }
    memref.dealloc %x : memref<5xf32>
    memref.dealloc %w : memref<2xf32>
    memref.dealloc %y : memref<4xf32>""",
    ),
    "global_without_a_value": Fault(
        "uninitialised",
        "line {fault}: memref.load: reads element [1] of @scratch (memref<2xf32>, declared at line {global}) before anything wrote it: 0 of its 2 elements are written",
        """
    %g = memref.get_global @scratch : memref<2xf32>
    %v = memref.load %g[%c1] : memref<2xf32> // fault
    memref.store %v, %out[%c0] : memref<1xf32>""",
    ),
    "second_iteration_of_a_hoisted_buffer": Fault(
        "uninitialised",
        "line {fault}: memref.load: reads element [0] of %buf (memref<4xf32>, allocated at line {made}) before anything wrote it since line {dealloc} (memref.dealloc) freed the buffer: 0 of its 4 elements are written",
        """
    %f = arith.constant 1.0 : f32
    %buf = memref.alloc() : memref<4xf32> // made
    scf.for %i = %c0 to %n step %c1 {
      %first = arith.cmpi eq, %i, %c0 : index
      scf.if %first {
        linalg.fill ins(%f : f32) outs(%buf : memref<4xf32>)
      }
      %v = memref.load %buf[%c0] : memref<4xf32> // fault
      memref.store %v, %out[%c0] : memref<1xf32>
      memref.dealloc %buf : memref<4xf32> // dealloc
    }""",
    ),
    # ---- use after dealloc ----
    "load_of_what_was_given_back": Fault(
        "freed",
        "line {fault}: memref.load: reads %buf (memref<4xf32>, allocated at line {made}) after line {dealloc} (memref.dealloc) freed it: move the deallocation behind the last use",
        """
    %f = arith.constant 1.0 : f32
    %buf = memref.alloc() : memref<4xf32> // made
    linalg.fill ins(%f : f32) outs(%buf : memref<4xf32>)
    memref.dealloc %buf : memref<4xf32> // dealloc
    %v = memref.load %buf[%c0] : memref<4xf32> // fault
    memref.store %v, %out[%c0] : memref<1xf32>""",
    ),
    "copy_into_what_was_given_back": Fault(
        "freed",
        "line {fault}: memref.copy: writes %buf (memref<1xf32>, allocated at line {made}) after line {dealloc} (memref.dealloc) freed it: move the deallocation behind the last use",
        """
    %buf = memref.alloc() : memref<1xf32> // made
    memref.dealloc %buf : memref<1xf32> // dealloc
    memref.copy %out, %buf : memref<1xf32> to memref<1xf32> // fault""",
    ),
    "loop_on_what_was_given_back": Fault(
        "freed",
        "line {fault}: memref.store: writes %buf (memref<4xf32>, allocated at line {made}) after line {dealloc} (memref.dealloc) freed it: move the deallocation behind the last use",
        """
    %f = arith.constant 1.0 : f32
    %buf = memref.alloc() : memref<4xf32> // made
    %view = memref.cast %buf : memref<4xf32> to memref<?xf32>
    linalg.fill ins(%f : f32) outs(%buf : memref<4xf32>)
    memref.dealloc %buf : memref<4xf32> // dealloc
    scf.for %i = %c0 to %c4 step %c1 {
      memref.store %f, %view[%i] : memref<?xf32> // fault
    }""",
    ),
    "given_back_twice": Fault(
        "freed",
        "line {fault}: memref.dealloc: frees %buf (memref<4xf32>, allocated at line {made}) after line {dealloc} (memref.dealloc) freed it: move the deallocation behind the last use",
        """
    %buf = memref.alloc() : memref<4xf32> // made
    memref.dealloc %buf : memref<4xf32> // dealloc
    memref.dealloc %buf : memref<4xf32> // fault""",
    ),
    "herd_on_what_its_segment_gave_back": Fault(
        "freed",
        "line {fault}: air.dma_memcpy_nd in herd @h (0, 0): reads %l2 (memref<4xf32, 1>, allocated at line {made}) after line {dealloc} (memref.dealloc) freed it: move the deallocation behind the last use",
        """
    air.launch () in () args(%out_l=%out) : memref<1xf32> {
      air.segment @s args(%out_s=%out_l) : memref<1xf32> {
        %f = arith.constant 1.0 : f32
        %l2 = memref.alloc() : memref<4xf32, 1> // made
        linalg.fill ins(%f : f32) outs(%l2 : memref<4xf32, 1>)
        memref.dealloc %l2 : memref<4xf32, 1> // dealloc
        air.herd @h tile (%tx, %ty) in (%sx=%c1, %sy=%c1) args(%l2_h=%l2) : memref<4xf32, 1> {
          %l1 = memref.alloc() : memref<4xf32, 2>
          air.dma_memcpy_nd (%l1[] [] [], %l2_h[] [] []) : (memref<4xf32, 2>, memref<4xf32, 1>) // fault
          memref.dealloc %l1 : memref<4xf32, 2>
        }
      }
    }""",
    ),
    # ---- leaks ----
    "leak": Fault(
        "leak",
        "line {made}: memref.alloc in segment @s: 5 buffers (80 bytes) of this allocation are never freed: add memref.dealloc of %buf (memref<4xf32, 1>, allocated at line {made}) to the loop",
        """
    air.launch () in () args(%n_l=%n) : index {
      air.segment @s args(%n_s=%n_l) : index {
        scf.for %i = %c0 to %n_s step %c1 {
          %buf = memref.alloc() : memref<4xf32, 1> // made
        }
      }
    }""",
    ),
}  # fmt: skip

CLEAN = {
    "reads_its_own_stores": """
    %f = arith.constant 3.0 : f32
    %buf = memref.alloc() : memref<2x4xf32, 2>
    memref.store %f, %buf[%c1, %c0] : memref<2x4xf32, 2>
    %v = memref.load %buf[%c1, %c0] : memref<2x4xf32, 2>
    memref.store %v, %out[%c0] : memref<1xf32>
    memref.dealloc %buf : memref<2x4xf32, 2>""",
    "written_in_parts_and_read_as_a_whole": """
    %f = arith.constant 1.0 : f32
    %buf = memref.alloc() : memref<4x4xf32>
    %all = memref.alloc() : memref<4x4xf32>
    scf.for %i = %c0 to %c2 step %c1 {
      %s = memref.subview %buf[0, %i] [4, 1] [1, 1] : memref<4x4xf32> to memref<4x1xf32, strided<[4, 1], offset: ?>>
      linalg.fill ins(%f : f32) outs(%s : memref<4x1xf32, strided<[4, 1], offset: ?>>)
    }
    %right = memref.subview %buf[0, 2] [4, 2] [1, 1] : memref<4x4xf32> to memref<4x2xf32, strided<[4, 1], offset: 2>>
    linalg.fill ins(%f : f32) outs(%right : memref<4x2xf32, strided<[4, 1], offset: 2>>)
    memref.copy %buf, %all : memref<4x4xf32> to memref<4x4xf32>
    %sum = memref.alloc() : memref<f32>
    %zero = arith.constant -13.0 : f32
    memref.store %zero, %sum[] : memref<f32>
    linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> ()>], iterator_types = ["reduction", "reduction"]} ins(%all : memref<4x4xf32>) outs(%sum : memref<f32>) {
    ^bb0(%a: f32, %b: f32):
      %c = arith.addf %a, %b : f32
      linalg.yield %c : f32
    }
    %v = memref.load %sum[] : memref<f32>
    memref.store %v, %out[%c0] : memref<1xf32>
    memref.dealloc %buf : memref<4x4xf32>
    memref.dealloc %all : memref<4x4xf32>
    memref.dealloc %sum : memref<f32>""",
    "loop_up_to_what_is_written": """
    %f = arith.constant 3.0 : f32
    %buf = memref.alloc() : memref<16xf32>
    scf.for %i = %c0 to %n step %c1 {
      %at = affine.apply affine_map<(d0) -> (d0 * 2 + 1)>(%i)
      memref.store %f, %buf[%i] : memref<16xf32>
      memref.store %f, %buf[%at] : memref<16xf32>
    }
    affine.for %i = 0 to %n {
      %v = affine.load %buf[%i + 1] : memref<16xf32>
      affine.store %v, %out[0] : memref<1xf32>
    }
    memref.dealloc %buf : memref<16xf32>""",
    "lanes_outside_that_are_legal": """
    %f = arith.constant 3.0 : f32
    %buf = memref.alloc() : memref<7xf32>
    linalg.fill ins(%f : f32) outs(%buf : memref<7xf32>)
    %v = vector.transfer_read %buf[%n], %f : memref<7xf32>, vector<8xf32>
    vector.transfer_write %v, %buf[%n] : vector<8xf32>, memref<7xf32>
    %m = vector.create_mask %c3 : vector<8xi1>
    %w = vector.maskedload %buf[%c4], %m, %v : memref<7xf32>, vector<8xi1>, vector<8xf32> into vector<8xf32>
    %x = vector.extract %w[2] : f32 from vector<8xf32>
    memref.store %x, %out[%c0] : memref<1xf32>
    memref.dealloc %buf : memref<7xf32>""",
    "views_and_casts": """
    %f = arith.constant 3.0 : f32
    %bytes = memref.alloc() : memref<64xi8>
    %view = memref.view %bytes[%c0][] : memref<64xi8> to memref<16xf32>
    linalg.fill ins(%f : f32) outs(%view : memref<16xf32>)
    %square = memref.expand_shape %view [[0, 1]] output_shape [4, 4] : memref<16xf32> into memref<4x4xf32>
    %any = memref.cast %square : memref<4x4xf32> to memref<?x4xf32>
    %cast = memref.reinterpret_cast %view to offset: [0], sizes: [3, 5], strides: [5, 1] : memref<16xf32> to memref<3x5xf32, strided<[5, 1]>>
    %v = memref.load %any[%c2, %c2] : memref<?x4xf32>
    %w = memref.load %cast[%c2, %c2] : memref<3x5xf32, strided<[5, 1]>>
    %x = arith.maximumf %v, %w : f32
    memref.store %x, %out[%c0] : memref<1xf32>
    memref.dealloc %bytes : memref<64xi8>""",
    "hoisted_buffer": """
    %f = arith.constant 3.0 : f32
    %buf = memref.alloc() : memref<4xf32>
    scf.for %i = %c0 to %n step %c1 {
      linalg.fill ins(%f : f32) outs(%buf : memref<4xf32>)
      %v = memref.load %buf[%c0] : memref<4xf32>
      memref.store %v, %out[%c0] : memref<1xf32>
      memref.dealloc %buf : memref<4xf32>
    }""",
    "given_back_in_every_iteration": """
    %f = arith.constant 3.0 : f32
    scf.for %i = %c0 to %c2000 step %c1 {
      %buf = memref.alloc() : memref<4xf32>
      linalg.fill ins(%f : f32) outs(%buf : memref<4xf32>)
      memref.copy %buf, %buf : memref<4xf32> to memref<4xf32>
      %v = memref.load %buf[%c0] : memref<4xf32>
      memref.store %v, %out[%c0] : memref<1xf32>
      %own = memref.alloca() : memref<4xf32>
      memref.dealloc %buf : memref<4xf32>
    }""",
    "global_that_is_written_first": """
    %f = arith.constant 3.0 : f32
    %g = memref.get_global @written : memref<2xf32>
    memref.store %f, %g[%c0] : memref<2xf32>
    %v = memref.load %g[%c0] : memref<2xf32>
    memref.store %v, %out[%c0] : memref<1xf32>""",
    "carried_buffers": """
    %f = arith.constant 3.0 : f32
    %a = memref.alloc() : memref<1xf32>
    %b = memref.alloc() : memref<1xf32>
    memref.store %f, %a[%c0] : memref<1xf32>
    %p:2 = scf.for %i = %c0 to %n step %c1 iter_args(%x = %a, %y = %b) -> (memref<1xf32>, memref<1xf32>) {
      memref.copy %x, %y : memref<1xf32> to memref<1xf32>
      scf.yield %y, %x : memref<1xf32>, memref<1xf32>
    }
    memref.copy %p#0, %out : memref<1xf32> to memref<1xf32>
    memref.dealloc %a : memref<1xf32>
    memref.dealloc %b : memref<1xf32>""",
}  # fmt: skip


def entry(name: str, arguments: str, body: str) -> str:
    return f"  func.func @{name}({arguments}) {{{body}\n    return\n  }}\n"


DEFAULT = Fault.arguments
MODULE = (
    "module {\n"
    + "  air.channel @c [1, 1]\n"
    + '  memref.global "private" @scratch : memref<2xf32> = uninitialized // global\n'
    + '  memref.global "private" @written : memref<2xf32> = uninitialized\n'
    + "".join(entry(name, fault.arguments, fault.body) for name, fault in FAULTS.items())
    + "".join(entry(name, DEFAULT, body) for name, body in CLEAN.items())
    + "}\n"
)


def lines_of(name: str) -> dict[str, int]:
    """The lines that are marked in an entry, by their mark; its first one is `entry`."""
    lines = MODULE.splitlines()
    first = next(i for i, line in enumerate(lines) if f"func.func @{name}(" in line)
    found = {"entry": first + 1, "global": next(i for i, line in enumerate(lines, 1) if "// global" in line)}
    for number, line in enumerate(lines[first:], first + 1):
        if line == "  }":
            return found
        if "// " in line:
            found[line.split("// ")[1]] = number
    raise AssertionError(name)
