// A herd has one size for each of its indices.
// RUN: not %air %s 2>&1 | filecheck %s
func.func @f(%a: memref<64xf32>) {
  %c1 = arith.constant 1 : index
  // CHECK: refuse_sizes.mlir:6:47: error: air.herd names 1 indices but 2 sizes: write one size per index
  air.herd @h tile (%x) in (%nx=%c1, %ny=%c1) {}
  return
}
