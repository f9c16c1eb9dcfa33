// REQUIRES: virtual_npu
// What is not executed is named with its line, before anything is built.
// RUN: not %vnpu run %s --zeros 2>&1 | filecheck %s
func.func @f(%a: memref<4xf32>) {
  // CHECK: error: line 6: tensor.empty: tensors are not supported: bufferize the module to memrefs first (one-shot-bufferize)
  %t = tensor.empty() : tensor<4xf32>
  return
}
