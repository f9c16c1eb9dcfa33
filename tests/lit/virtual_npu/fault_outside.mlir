// REQUIRES: virtual_npu
// The second tile reads past the end of the argument.
// RUN: not %vnpu run %s --zeros 2>&1 | filecheck %s

// CHECK: error: f: line 15: air.dma_memcpy_nd in herd @tiles (1, 0): the access pattern reaches elements 6 to 11 of %a (memref<8xi32>, argument 0 of @f at line 7): legal are 0 to 7
#at = affine_map<()[s0] -> (s0 * 6)>
func.func @f(%a: memref<8xi32>) {
  %n1 = arith.constant 1 : index
  %n2 = arith.constant 2 : index
  air.herd @tiles tile (%x, %y) in (%nx=%n2, %ny=%n1) args(%a1=%a) : memref<8xi32> {
    %c1 = arith.constant 1 : index
    %c6 = arith.constant 6 : index
    %at = affine.apply #at()[%x]
    %l1 = memref.alloc() : memref<6xi32, 2>
    air.dma_memcpy_nd (%l1[] [] [], %a1[%at] [%c6] [%c1]) : (memref<6xi32, 2>, memref<8xi32>)
    memref.dealloc %l1 : memref<6xi32, 2>
  }
  return
}
