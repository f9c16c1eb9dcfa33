// rope, rows=8 n_heads=2 head_dim=32 herd_x=2, after air-dependency: the bounds of the loop depend on the
// tile; the inner loop takes its token from the outer one, and the table's row is waited for where it is
// read.
#first = affine_map<()[s0] -> (s0 * 4)>
#after = affine_map<()[s0] -> (s0 * 4 + 4)>
module {
  func.func private @rope_2x32(memref<64xbf16, 2>, memref<32xbf16, 2>, memref<64xbf16, 2>, i32, i32) attributes {link_with = "rope_2x32.o", link_source = "rope_halfsplit.cc", link_defines = "rope=rope_2x32", llvm.emit_c_interface}
  func.func @rope_async(%x: memref<8x64xbf16>, %lut: memref<8x32xbf16>, %out: memref<8x64xbf16>) {
    %launched = air.launch async () in () args(%lut_1=%lut, %x_1=%x, %out_1=%out) : memref<8x32xbf16>, memref<8x64xbf16>, memref<8x64xbf16> attributes {id = 1 : i32} {
      %segment = air.segment @rope_segment async args(%lut_2=%lut_1, %x_2=%x_1, %out_2=%out_1) : memref<8x32xbf16>, memref<8x64xbf16>, memref<8x64xbf16> attributes {id = 2 : i32} {
        %c1 = arith.constant 1 : index
        %c2 = arith.constant 2 : index
        %herd = air.herd @rope_herd async tile (%hx, %hy) in (%nx=%c2, %ny=%c1) args(%lut_3=%lut_2, %x_3=%x_2, %out_3=%out_2) : memref<8x32xbf16>, memref<8x64xbf16>, memref<8x64xbf16> attributes {id = 3 : i32} {
          %c0 = arith.constant 0 : index
          %c1 = arith.constant 1 : index
          %c32 = arith.constant 32 : index
          %c64 = arith.constant 64 : index
          %heads = arith.constant 2 : i32
          %dim = arith.constant 32 : i32
          %first = affine.apply #first()[%hx]
          %after = affine.apply #after()[%hx]
          %l1_lut_new, %l1_lut = air.execute -> (memref<32xbf16, 2>) {
            %alloc = memref.alloc() : memref<32xbf16, 2>
            air.execute_terminator %alloc : memref<32xbf16, 2>
          } {id = 1 : i32}
          %l1_x_new, %l1_x = air.execute -> (memref<64xbf16, 2>) {
            %alloc = memref.alloc() : memref<64xbf16, 2>
            air.execute_terminator %alloc : memref<64xbf16, 2>
          } {id = 2 : i32}
          %l1_out_new, %l1_out = air.execute -> (memref<64xbf16, 2>) {
            %alloc = memref.alloc() : memref<64xbf16, 2>
            air.execute_terminator %alloc : memref<64xbf16, 2>
          } {id = 3 : i32}
          %ready = air.wait_all async [%l1_lut_new, %l1_x_new, %l1_out_new] {id = 1 : i32}
          %rows = scf.for %i = %first to %after step %c1 iter_args(%row = %ready) -> (!air.async.token) {
            %in_lut = air.dma_memcpy_nd async [%row] (%l1_lut[] [] [], %lut_3[%i, %c0] [%c1, %c32] [%c32, %c1]) {id = 1 : i32} : (memref<32xbf16, 2>, memref<8x32xbf16>)
            %begun = air.wait_all async [%row, %in_lut] {id = 2 : i32}
            %chunks = scf.for %j = %c0 to %c1 step %c1 iter_args(%chunk = %begun) -> (!air.async.token) {
              %in_x = air.dma_memcpy_nd async [%chunk] (%l1_x[] [] [], %x_3[%i, %j, %c0] [%c1, %c1, %c64] [%c64, %c64, %c1]) {id = 2 : i32} : (memref<64xbf16, 2>, memref<8x64xbf16>)
              %turned = air.execute [%in_x] {
                func.call @rope_2x32(%l1_x, %l1_lut, %l1_out, %heads, %dim) : (memref<64xbf16, 2>, memref<32xbf16, 2>, memref<64xbf16, 2>, i32, i32) -> ()
              } {id = 4 : i32}
              %stored = air.dma_memcpy_nd async [%turned] (%out_3[%i, %j, %c0] [%c1, %c1, %c64] [%c64, %c64, %c1], %l1_out[] [] []) {id = 3 : i32} : (memref<8x64xbf16>, memref<64xbf16, 2>)
              scf.yield %stored : !air.async.token
            }
            scf.yield %chunks : !air.async.token
          }
          %free_lut = air.execute [%rows] {
            memref.dealloc %l1_lut : memref<32xbf16, 2>
          } {id = 5 : i32}
          %free_x = air.execute [%rows] {
            memref.dealloc %l1_x : memref<64xbf16, 2>
          } {id = 6 : i32}
          %free_out = air.execute [%rows] {
            memref.dealloc %l1_out : memref<64xbf16, 2>
          } {id = 7 : i32}
        }
      }
    }
    return
  }
}
