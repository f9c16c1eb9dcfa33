// The C++ of a program: one function per herd, its DMAs with the line that they come from.
// RUN: %vnpu emit %s | filecheck %s

// CHECK-LABEL: static void herd_tile(
// CHECK:         float *const v_l1 = arena.alloc<float>(4);
// CHECK:         // 16: air.dma_memcpy_nd
// CHECK-LABEL: static void func_f(
// CHECK:         vnpu::parallel(2,
// CHECK:         herd_tile(
// CHECK:       VNPU_EXPORT int vnpu_entry_f(
func.func @f(%a: memref<4xf32>) {
  %n1 = arith.constant 1 : index
  %n2 = arith.constant 2 : index
  air.herd @tile tile (%x, %y) in (%nx=%n2, %ny=%n1) args(%a1=%a) : memref<4xf32> {
    %l1 = memref.alloc() : memref<4xf32, 2>
    air.dma_memcpy_nd (%l1[] [] [], %a1[] [] []) : (memref<4xf32, 2>, memref<4xf32>)
    memref.dealloc %l1 : memref<4xf32, 2>
  }
  return
}
