// A program on its way to C++: calls inlined, then what the passes recognise, with what it stands for inside.
// RUN: %vnpu emit --stage parsed %s | filecheck %s --check-prefix=PARSED
// RUN: %vnpu emit --stage inlined %s | filecheck %s --check-prefix=INLINED
// RUN: %vnpu emit --stage rewritten %s | filecheck %s --check-prefix=REWRITTEN
// RUN: %vnpu emit --stage rewritten --checks %s | filecheck %s --check-prefix=CHECKED

// PARSED-LABEL: func.func @product(
// PARSED:         func.call @multiply(
// INLINED-LABEL: func.func @product(
// INLINED-NOT:     func.call
// INLINED:         air.herd @tiles tile
// INLINED-NOT:     vnpu.

// REWRITTEN-LABEL: func.func @product(
// REWRITTEN:         vnpu.product %c[0] += %x[0] * %y[0] m {{\[\[}}16, 8, 8]] n {{\[\[}}8, 1, 1]] k {{\[\[}}8, 1, 8]] block 8x8 {
// REWRITTEN-NEXT:      air.herd @tiles tile
// REWRITTEN:             %la = vnpu.borrowed {
// REWRITTEN-NEXT:          memref.alloc()
// REWRITTEN:             vnpu.borrow {
// REWRITTEN-NEXT:          air.dma_memcpy_nd
// REWRITTEN:             vector.transfer_write
// REWRITTEN-NOT:         memref.dealloc %la
// REWRITTEN:         func.return

// With checks everything runs as it is written; loops that touch memory are marked, for their two versions.
// CHECKED-LABEL: func.func @product(
// CHECKED-NOT:     vnpu.product
// CHECKED:         vnpu.nest {
// CHECKED-NEXT:      scf.for
#a = affine_map<(d0, d1, d2) -> (d0, d2)>
#b = affine_map<(d0, d1, d2) -> (d2, d1)>
#c = affine_map<(d0, d1, d2) -> (d0, d1)>
func.func @product(%x: memref<2x8x8xbf16>, %y: memref<8x8xbf16>, %z: memref<2x8x8xf32>) {
  %c = memref.alloc() : memref<2x8x8xf32, 2>
  func.call @multiply(%x, %y, %c) : (memref<2x8x8xbf16>, memref<8x8xbf16>, memref<2x8x8xf32, 2>) -> ()
  air.dma_memcpy_nd (%z[] [] [], %c[] [] []) : (memref<2x8x8xf32>, memref<2x8x8xf32, 2>)
  memref.dealloc %c : memref<2x8x8xf32, 2>
  return
}
func.func private @multiply(%a: memref<2x8x8xbf16>, %b: memref<8x8xbf16>, %c: memref<2x8x8xf32, 2>) {
  %c1 = arith.constant 1 : index
  air.herd @tiles tile (%x, %y) in (%nx=%c1, %ny=%c1) args(%ta=%a, %tb=%b, %tc=%c) : memref<2x8x8xbf16>, memref<8x8xbf16>, memref<2x8x8xf32, 2> {
    %i0 = arith.constant 0 : index
    %i1 = arith.constant 1 : index
    %i2 = arith.constant 2 : index
    %zero = arith.constant 0.0 : bf16
    %nought = arith.constant 0.0 : f32
    %la = memref.alloc() : memref<2x8x8xbf16, 2>
    %lb = memref.alloc() : memref<8x8xbf16, 2>
    air.dma_memcpy_nd (%la[] [] [], %ta[] [] []) : (memref<2x8x8xbf16, 2>, memref<2x8x8xbf16>)
    air.dma_memcpy_nd (%lb[] [] [], %tb[] [] []) : (memref<8x8xbf16, 2>, memref<8x8xbf16>)
    scf.for %i = %i0 to %i2 step %i1 {
      %va = vector.transfer_read %la[%i, %i0, %i0], %zero {in_bounds = [true, true]} : memref<2x8x8xbf16, 2>, vector<8x8xbf16>
      %vb = vector.transfer_read %lb[%i0, %i0], %zero {in_bounds = [true, true]} : memref<8x8xbf16, 2>, vector<8x8xbf16>
      %vc = vector.transfer_read %tc[%i, %i0, %i0], %nought {in_bounds = [true, true]} : memref<2x8x8xf32, 2>, vector<8x8xf32>
      %sum = vector.contract {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"], kind = #vector.kind<add>} %va, %vb, %vc : vector<8x8xbf16>, vector<8x8xbf16> into vector<8x8xf32>
      vector.transfer_write %sum, %tc[%i, %i0, %i0] {in_bounds = [true, true]} : vector<8x8xf32>, memref<2x8x8xf32, 2>
    }
    memref.dealloc %la : memref<2x8x8xbf16, 2>
    memref.dealloc %lb : memref<8x8xbf16, 2>
  }
  return
}
