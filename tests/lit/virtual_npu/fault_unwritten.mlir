// REQUIRES: virtual_npu
// L1 goes out before anything wrote it; without checks nobody notices.
// RUN: not %vnpu run %s --zeros 2>&1 | filecheck %s
// RUN: %vnpu run %s --zeros --no-checks

// CHECK: error: f: line 11: air.dma_memcpy_nd in herd @tile (0, 0): reads element [0] of %l1 (memref<4xi32, 2>, allocated at line 10) before anything wrote it: 0 of its 4 elements are written
func.func @f(%a: memref<4xi32>) {
  %n1 = arith.constant 1 : index
  air.herd @tile tile (%x, %y) in (%nx=%n1, %ny=%n1) args(%a1=%a) : memref<4xi32> {
    %l1 = memref.alloc() : memref<4xi32, 2>
    air.dma_memcpy_nd (%a1[] [] [], %l1[] [] []) : (memref<4xi32>, memref<4xi32, 2>)
    memref.dealloc %l1 : memref<4xi32, 2>
  }
  return
}
