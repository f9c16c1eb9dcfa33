// REQUIRES: virtual_npu
// Three dumps of a compiler, the last of which stores something else.
// RUN: rm -rf %t && mkdir %t
// RUN: cp %s %t/pass_000_initial.mlir
// RUN: cp %s %t/pass_001_after_canonicalize.mlir
// RUN: %vnpu bisect %t --zeros | filecheck %s --check-prefix=SAME
// RUN: sed 's/constant 7 : i32/constant 8 : i32/' %s > %t/pass_002_after_air-dependency.mlir
// RUN: not %vnpu bisect %t --zeros 2>&1 | filecheck %s

// SAME:       same pass_000_initial.mlir
// SAME-NEXT:  same pass_001_after_canonicalize.mlir
// SAME-NOT:   guilty
// CHECK:      same pass_000_initial.mlir
// CHECK-NEXT: same pass_001_after_canonicalize.mlir
// CHECK-NEXT: different pass_002_after_air-dependency.mlir
// CHECK-NEXT: guilty: air-dependency (after pass_001_after_canonicalize.mlir): the results change: arg0[1] is 8 instead of 7 (1 of 4 elements differ)
func.func @f(%a: memref<4xi32>) {
  %n1 = arith.constant 1 : index
  air.herd @tile tile (%x, %y) in (%nx=%n1, %ny=%n1) args(%a1=%a) : memref<4xi32> {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %value = arith.constant 7 : i32
    %l1 = memref.alloc() : memref<1xi32, 2>
    memref.store %value, %l1[%c0] : memref<1xi32, 2>
    air.dma_memcpy_nd (%a1[%c1] [%c1] [%c1], %l1[] [] []) : (memref<4xi32>, memref<1xi32, 2>)
    memref.dealloc %l1 : memref<1xi32, 2>
  }
  return
}
