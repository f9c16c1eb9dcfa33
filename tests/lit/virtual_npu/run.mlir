// REQUIRES: virtual_npu
// Each of eight tiles writes its number; --stats counts what they moved.
// RUN: %vnpu run %s --zeros | filecheck %s
// RUN: %vnpu run %s --zeros --perturb 4 --stats | filecheck %s --check-prefix=STATS
// RUN: %vnpu run %s --zeros --json | filecheck %s --check-prefix=JSON

// CHECK:      @numbers after the run
// CHECK-NEXT: argument shape dtype min mean max crc32
// CHECK-NEXT: arg0     8     i32   0   3.5  7

// STATS: tile or body {{.*}}transfers
// STATS: herd @tiles (1, 3) {{.*}} 0 4 1 0 4
// STATS: 5 schedules, same results

// JSON: "ok": true
#number = affine_map<()[s0, s1] -> (s0 * 4 + s1)>
func.func @numbers(%out: memref<8xi32>) {
  %n2 = arith.constant 2 : index
  %n4 = arith.constant 4 : index
  air.herd @tiles tile (%x, %y) in (%nx=%n2, %ny=%n4) args(%out1=%out) : memref<8xi32> {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %l1 = memref.alloc() : memref<1xi32, 2>
    %number = affine.apply #number()[%x, %y]
    %value = arith.index_cast %number : index to i32
    memref.store %value, %l1[%c0] : memref<1xi32, 2>
    air.dma_memcpy_nd (%out1[%number] [%c1] [%c1], %l1[] [] []) : (memref<8xi32>, memref<1xi32, 2>)
    memref.dealloc %l1 : memref<1xi32, 2>
  }
  return
}
