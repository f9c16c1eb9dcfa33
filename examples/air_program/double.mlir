// out = 2 in, 64 f32 numbers: four cores, 16 numbers each.
#at = affine_map<()[s0] -> (s0 * 16)>
func.func @double(%in: memref<64xf32>, %out: memref<64xf32>) {
  air.launch () in () args(%in1=%in, %out1=%out) : memref<64xf32>, memref<64xf32> {
    air.segment @segment args(%in2=%in1, %out2=%out1) : memref<64xf32>, memref<64xf32> {
      %c1 = arith.constant 1 : index
      %c4 = arith.constant 4 : index
      air.herd @herd tile (%x, %y) in (%nx=%c4, %ny=%c1) args(%in3=%in2, %out3=%out2) : memref<64xf32>, memref<64xf32> {
        %c0 = arith.constant 0 : index
        %one = arith.constant 1 : index
        %c16 = arith.constant 16 : index
        %at = affine.apply #at()[%x]
        %l1 = memref.alloc() : memref<16xf32, 2>
        air.dma_memcpy_nd (%l1[] [] [], %in3[%at] [%c16] [%one]) : (memref<16xf32, 2>, memref<64xf32>)
        %v = vector.load %l1[%c0] : memref<16xf32, 2>, vector<16xf32>
        %sum = arith.addf %v, %v : vector<16xf32>
        vector.store %sum, %l1[%c0] : memref<16xf32, 2>, vector<16xf32>
        air.dma_memcpy_nd (%out3[%at] [%c16] [%one], %l1[] [] []) : (memref<64xf32>, memref<16xf32, 2>)
        memref.dealloc %l1 : memref<16xf32, 2>
      }
    }
  }
  return
}
