// REQUIRES: virtual_npu
// The second copy does not wait for the first, which fills what it reads: locks of L2 put them in order. The third
// writes L3 as the second does, and L3 has no locks; --races note lets the run go on.
// RUN: not %vnpu run %s --random 1 2>&1 | filecheck %s
// RUN: %vnpu run %s --random 1 --races note 2>&1 | filecheck %s --check-prefix=NOTE

// CHECK: error: f: line 19: air.dma_memcpy_nd in segment @seg: data race: this writes element 0 of %b, which line 18: air.dma_memcpy_nd in segment @seg writes, and nothing puts one before the other, for L3 has no locks; let one of them depend on the token of the other, or send the data through a channel
// NOTE:  note: line 18: air.dma_memcpy_nd: in segment @seg: missing token, a data race but for the locks of the device: this reads element 0 of %new, which line 17: air.dma_memcpy_nd in segment @seg writes
// NOTE:  note: line 19: air.dma_memcpy_nd: in segment @seg: data race
func.func @f(%a: memref<4xi32>, %b: memref<4xi32>) {
  air.segment @seg args(%a1=%a, %b1=%b) : memref<4xi32>, memref<4xi32> {
    %n1 = arith.constant 1 : index
    %made, %l2 = air.execute -> (memref<4xi32, 1>) {
      %new = memref.alloc() : memref<4xi32, 1>
      air.execute_terminator %new : memref<4xi32, 1>
    }
    %in = air.dma_memcpy_nd async [%made] (%l2[] [] [], %a1[] [] []) : (memref<4xi32, 1>, memref<4xi32>)
    %out = air.dma_memcpy_nd async [%made] (%b1[] [] [], %l2[] [] []) : (memref<4xi32>, memref<4xi32, 1>)
    %past = air.dma_memcpy_nd async [%made] (%b1[] [] [], %a1[] [] []) : (memref<4xi32>, memref<4xi32>)
    %freed = air.execute [%in, %out, %past] {
      memref.dealloc %l2 : memref<4xi32, 1>
    }
  }
  return
}
