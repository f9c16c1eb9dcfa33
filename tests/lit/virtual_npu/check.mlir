// What a program takes of the device, and what is too much. No compiler is needed.
// RUN: %vnpu check %s | filecheck %s
// RUN: sed 's/<1024xf32, 2>/<16384xf32, 2>/g; s/constant 1024/constant 16384/' %s > %t.mlir
// RUN: not %vnpu check %t.mlir 2>&1 | filecheck %s --check-prefix=FULL

// CHECK:     f/tiles  cores 2 32 ok
// CHECK:     f/tiles  L1 bytes 5120 65536 ok
// CHECK-NOT: TOO MUCH
// FULL:      f/tiles  L1 bytes 66560 65536 TOO MUCH
// FULL:      error: line 14: air.herd: f/tiles: L1 bytes takes 66560, npu2 has 65536; use smaller L1 tiles
func.func @f(%a: memref<16384xf32>) {
  %n1 = arith.constant 1 : index
  %n2 = arith.constant 2 : index
  air.herd @tiles tile (%x, %y) in (%nx=%n2, %ny=%n1) args(%a1=%a) : memref<16384xf32> {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %size = arith.constant 1024 : index
    %l1 = memref.alloc() : memref<1024xf32, 2>
    air.dma_memcpy_nd (%l1[] [] [], %a1[%c0] [%size] [%c1]) : (memref<1024xf32, 2>, memref<16384xf32>)
    memref.dealloc %l1 : memref<1024xf32, 2>
  }
  return
}
