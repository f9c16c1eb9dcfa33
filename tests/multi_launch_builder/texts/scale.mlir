// As the air Python bindings print a kernel: map aliases, numbered values, a bare herd, an external function.
#map = affine_map<()[s0] -> (s0 * 64)>
module {
  func.func private @scale_bf16(memref<64xbf16, 2 : i32>, memref<64xbf16, 2 : i32>, i32) attributes {link_with = "scale.o", llvm.emit_c_interface}
  func.func @scale(%arg0: memref<512xbf16>, %arg1: memref<512xbf16>) {
    %c8 = arith.constant 8 : index
    %c1 = arith.constant 1 : index
    air.herd @herd_0  tile (%arg2, %arg3) in (%arg4=%c8, %arg5=%c1) args(%arg6=%arg0, %arg7=%arg1) : memref<512xbf16>, memref<512xbf16> attributes {link_with = "scale.o"} {
      %c64_i32 = arith.constant 64 : i32
      %0 = affine.apply #map()[%arg2]
      %alloc = memref.alloc() : memref<64xbf16, 2 : i32>
      %alloc_0 = memref.alloc() : memref<64xbf16, 2 : i32>
      %c64 = arith.constant 64 : index
      %c1_1 = arith.constant 1 : index
      air.dma_memcpy_nd (%alloc[] [] [], %arg6[%0] [%c64] [%c1_1]) {id = 1 : i32} : (memref<64xbf16, 2 : i32>, memref<512xbf16>)
      func.call @scale_bf16(%alloc, %alloc_0, %c64_i32) : (memref<64xbf16, 2 : i32>, memref<64xbf16, 2 : i32>, i32) -> ()
      air.dma_memcpy_nd (%arg7[%0] [%c64] [%c1_1], %alloc_0[] [] []) {id = 2 : i32} : (memref<512xbf16>, memref<64xbf16, 2 : i32>)
      memref.dealloc %alloc : memref<64xbf16, 2 : i32>
      memref.dealloc %alloc_0 : memref<64xbf16, 2 : i32>
    }
    return
  }
}
