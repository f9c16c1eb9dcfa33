// An execute gives a token and a buffer; a DMA with a pattern waits for it and is waited for.
// RUN: %air %s | %air - | filecheck %s

// CHECK-LABEL: func.func @f
func.func @f(%a: memref<64x64xbf16>) {
  air.segment @seg args(%a1=%a) : memref<64x64xbf16> {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c8 = arith.constant 8 : index
    %c64 = arith.constant 64 : index
    // CHECK:      %made, %l2 = air.execute -> (memref<8x8xbf16, 1>) {
    // CHECK-NEXT:   %new = memref.alloc() : memref<8x8xbf16, 1>
    // CHECK-NEXT:   air.execute_terminator %new : memref<8x8xbf16, 1>
    // CHECK-NEXT: }
    // CHECK-NEXT: %in = air.dma_memcpy_nd async [%made] (%l2[] [] [], %a1[%c0, %c8] [%c8, %c8] [%c64, %c1]) {id = 1 : i32} : (memref<8x8xbf16, 1>, memref<64x64xbf16>)
    // CHECK-NEXT: %freed = air.execute [%in] {
    // CHECK-NEXT:   memref.dealloc %l2 : memref<8x8xbf16, 1>
    %made, %l2 = air.execute -> (memref<8x8xbf16, 1>) {
      %new = memref.alloc() : memref<8x8xbf16, 1>
      air.execute_terminator %new : memref<8x8xbf16, 1>
    }
    %in = air.dma_memcpy_nd async [%made] (%l2[] [] [], %a1[%c0, %c8] [%c8, %c8] [%c64, %c1]) {id = 1 : i32} : (memref<8x8xbf16, 1>, memref<64x64xbf16>)
    %freed = air.execute [%in] {
      memref.dealloc %l2 : memref<8x8xbf16, 1>
    }
  }
  return
}
