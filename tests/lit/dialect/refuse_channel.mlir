// A channel that nobody declares; --fragment takes it, as mlir-air's own verifiers do.
// RUN: not %air %s 2>&1 | filecheck %s
// RUN: %air --fragment %s | filecheck %s --check-prefix=FRAGMENT
func.func @f(%a: memref<64xf32>) {
  // CHECK: refuse_channel.mlir:7:3: error: air.channel.put uses channel @nowhere, which is not declared: add air.channel @nowhere [...] to the module
  // FRAGMENT: air.channel.put @nowhere[] (%a[] [] []) : (memref<64xf32>)
  air.channel.put @nowhere[] (%a[] [] []) : (memref<64xf32>)
  return
}
