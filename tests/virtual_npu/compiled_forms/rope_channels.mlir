// rope, rows=8 n_heads=2 head_dim=32 herd_x=2, after air-dma-to-channel: the loop nests that feed and drain
// the tiles stand after the segment in the text, and have the bounds of the tile whose channel they serve.
#first = affine_map<()[s0] -> (s0 * 4)>
#after = affine_map<()[s0] -> (s0 * 4 + 4)>
module {
  air.channel @rope_channels_0 [2, 1]
  air.channel @rope_channels_1 [2, 1]
  air.channel @rope_channels_2 [2, 1]
  func.func private @rope_2x32(memref<64xbf16, 2>, memref<32xbf16, 2>, memref<64xbf16, 2>, i32, i32) attributes {link_with = "rope_2x32.o", link_source = "rope_halfsplit.cc", link_defines = "rope=rope_2x32", llvm.emit_c_interface}
  func.func @rope_channels(%x: memref<8x64xbf16>, %lut: memref<8x32xbf16>, %out: memref<8x64xbf16>) {
    %launched = air.launch async () in () args(%lut_1=%lut, %x_1=%x, %out_1=%out) : memref<8x32xbf16>, memref<8x64xbf16>, memref<8x64xbf16> attributes {id = 1 : i32} {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c2 = arith.constant 2 : index
      %c32 = arith.constant 32 : index
      %c64 = arith.constant 64 : index
      %begin = air.wait_all async
      %segment = air.segment @rope_segment async attributes {id = 2 : i32} {
        %c1 = arith.constant 1 : index
        %c2 = arith.constant 2 : index
        %herd = air.herd @rope_herd async tile (%hx, %hy) in (%nx=%c2, %ny=%c1) attributes {id = 3 : i32} {
          %c0 = arith.constant 0 : index
          %c1 = arith.constant 1 : index
          %heads = arith.constant 2 : i32
          %dim = arith.constant 32 : i32
          %first = affine.apply #first()[%hx]
          %after = affine.apply #after()[%hx]
          %l1_lut_new, %l1_lut = air.execute -> (memref<32xbf16, 2>) {
            %alloc = memref.alloc() : memref<32xbf16, 2>
            air.execute_terminator %alloc : memref<32xbf16, 2>
          }
          %l1_x_new, %l1_x = air.execute -> (memref<64xbf16, 2>) {
            %alloc = memref.alloc() : memref<64xbf16, 2>
            air.execute_terminator %alloc : memref<64xbf16, 2>
          }
          %l1_out_new, %l1_out = air.execute -> (memref<64xbf16, 2>) {
            %alloc = memref.alloc() : memref<64xbf16, 2>
            air.execute_terminator %alloc : memref<64xbf16, 2>
          }
          %ready = air.wait_all async [%l1_lut_new, %l1_x_new, %l1_out_new]
          %rows = scf.for %i = %first to %after step %c1 iter_args(%row = %ready) -> (!air.async.token) {
            %in_lut = air.channel.get async [%row] @rope_channels_0[%hx, %hy] (%l1_lut[] [] []) {id = 1 : i32} : (memref<32xbf16, 2>)
            %begun = air.wait_all async [%row, %in_lut]
            %chunks = scf.for %j = %c0 to %c1 step %c1 iter_args(%chunk = %begun) -> (!air.async.token) {
              %in_x = air.channel.get async [%chunk] @rope_channels_1[%hx, %hy] (%l1_x[] [] []) {id = 2 : i32} : (memref<64xbf16, 2>)
              %turned = air.execute [%in_x] {
                func.call @rope_2x32(%l1_x, %l1_lut, %l1_out, %heads, %dim) : (memref<64xbf16, 2>, memref<32xbf16, 2>, memref<64xbf16, 2>, i32, i32) -> ()
              }
              %stored = air.channel.put async [%turned] @rope_channels_2[%hx, %hy] (%l1_out[] [] []) {id = 3 : i32} : (memref<64xbf16, 2>)
              scf.yield %stored : !air.async.token
            }
            scf.yield %chunks : !air.async.token
          }
          %free_lut = air.execute [%rows] {
            memref.dealloc %l1_lut : memref<32xbf16, 2>
          }
          %free_x = air.execute [%rows] {
            memref.dealloc %l1_x : memref<64xbf16, 2>
          }
          %free_out = air.execute [%rows] {
            memref.dealloc %l1_out : memref<64xbf16, 2>
          }
        }
      }
      %lut_out = scf.parallel (%px, %py) = (%c0, %c0) to (%c2, %c1) step (%c1, %c1) init (%begin) -> !air.async.token {
        %lut_out_t0, %lut_out_first = air.execute [%begin] -> (index) {
          %at = affine.apply #first()[%px]
          air.execute_terminator %at : index
        }
        %lut_out_t1, %lut_out_after = air.execute [%begin] -> (index) {
          %at = affine.apply #after()[%px]
          air.execute_terminator %at : index
        }
        %lut_out_go = air.wait_all async [%lut_out_t0, %lut_out_t1]
        %lut_out_rows = scf.for %i = %lut_out_first to %lut_out_after step %c1 iter_args(%row = %lut_out_go) -> (!air.async.token) {
          %lut_out_one = air.channel.put async [%row] @rope_channels_0[%px, %py] (%lut_1[%i, %c0] [%c1, %c32] [%c32, %c1]) {id = 4 : i32} : (memref<8x32xbf16>)
          scf.yield %lut_out_one : !air.async.token
        }
        scf.reduce(%lut_out_rows : !air.async.token) {
        ^bb0(%left: !air.async.token, %right: !air.async.token):
          %both = air.wait_all async [%left, %right]
          scf.reduce.return %both : !air.async.token
        }
      }
      %x_out = scf.parallel (%px, %py) = (%c0, %c0) to (%c2, %c1) step (%c1, %c1) init (%begin) -> !air.async.token {
        %x_out_t0, %x_out_first = air.execute [%begin] -> (index) {
          %at = affine.apply #first()[%px]
          air.execute_terminator %at : index
        }
        %x_out_t1, %x_out_after = air.execute [%begin] -> (index) {
          %at = affine.apply #after()[%px]
          air.execute_terminator %at : index
        }
        %x_out_go = air.wait_all async [%x_out_t0, %x_out_t1]
        %x_out_rows = scf.for %i = %x_out_first to %x_out_after step %c1 iter_args(%row = %x_out_go) -> (!air.async.token) {
          %x_out_one = air.channel.put async [%row] @rope_channels_1[%px, %py] (%x_1[%i, %c0, %c0] [%c1, %c1, %c64] [%c64, %c64, %c1]) {id = 5 : i32} : (memref<8x64xbf16>)
          scf.yield %x_out_one : !air.async.token
        }
        scf.reduce(%x_out_rows : !air.async.token) {
        ^bb0(%left: !air.async.token, %right: !air.async.token):
          %both = air.wait_all async [%left, %right]
          scf.reduce.return %both : !air.async.token
        }
      }
      %result_in = scf.parallel (%px, %py) = (%c0, %c0) to (%c2, %c1) step (%c1, %c1) init (%begin) -> !air.async.token {
        %result_in_t0, %result_in_first = air.execute [%begin] -> (index) {
          %at = affine.apply #first()[%px]
          air.execute_terminator %at : index
        }
        %result_in_t1, %result_in_after = air.execute [%begin] -> (index) {
          %at = affine.apply #after()[%px]
          air.execute_terminator %at : index
        }
        %result_in_go = air.wait_all async [%result_in_t0, %result_in_t1]
        %result_in_rows = scf.for %i = %result_in_first to %result_in_after step %c1 iter_args(%row = %result_in_go) -> (!air.async.token) {
          %result_in_one = air.channel.get async [%row] @rope_channels_2[%px, %py] (%out_1[%i, %c0, %c0] [%c1, %c1, %c64] [%c64, %c64, %c1]) {id = 6 : i32} : (memref<8x64xbf16>)
          scf.yield %result_in_one : !air.async.token
        }
        scf.reduce(%result_in_rows : !air.async.token) {
        ^bb0(%left: !air.async.token, %right: !air.async.token):
          %both = air.wait_all async [%left, %right]
          scf.reduce.return %both : !air.async.token
        }
      }
    }
    return
  }
}
