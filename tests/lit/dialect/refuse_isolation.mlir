// A herd sees what it is given, and nothing else.
// RUN: not %air %s 2>&1 | filecheck %s
func.func @f(%a: memref<64xf32>) {
  %c1 = arith.constant 1 : index
  // CHECK: refuse_isolation.mlir:{{[0-9:]+}} error: %a used in a body that does not define it: a hierarchy body is isolated from above, pass the value through args(...) or create the constant inside
  air.herd @h tile (%x, %y) in (%nx=%c1, %ny=%c1) {
    memref.dealloc %a : memref<64xf32>
  }
  return
}
