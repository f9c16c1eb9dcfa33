// The two sides of a DMA move the same number of elements.
// RUN: not %air %s 2>&1 | filecheck %s
func.func @f(%a: memref<64xf32>, %b: memref<64xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c16 = arith.constant 16 : index
  // CHECK: refuse_elements.mlir:8:3: error: air.dma_memcpy_nd writes 16 elements to dst but reads 64 from src: the products of the sizes must be equal
  air.dma_memcpy_nd (%a[%c0] [%c16] [%c1], %b[] [] []) : (memref<64xf32>, memref<64xf32>)
  return
}
