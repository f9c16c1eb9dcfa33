// rope, rows=8 n_heads=2 head_dim=32 herd_x=2, after air-ping-pong-transform: the loop of one trip is folded
// away, the one over the tile's positions takes two at a time.
#first = affine_map<()[s0] -> (s0 * 4)>
#after = affine_map<()[s0] -> (s0 * 4 + 4)>
module {
  air.channel @rope_pingpong_0 [2, 1]
  air.channel @rope_pingpong_1 [2, 1]
  air.channel @rope_pingpong_2 [2, 1]
  func.func private @rope_2x32(memref<64xbf16, 2>, memref<32xbf16, 2>, memref<64xbf16, 2>, i32, i32) attributes {link_with = "rope_2x32.o", link_source = "rope_halfsplit.cc", link_defines = "rope=rope_2x32", llvm.emit_c_interface}
  func.func @rope_pingpong(%x: memref<8x64xbf16>, %lut: memref<8x32xbf16>, %out: memref<8x64xbf16>) {
    %launched = air.launch async () in () args(%lut_1=%lut, %x_1=%x, %out_1=%out) : memref<8x32xbf16>, memref<8x64xbf16>, memref<8x64xbf16> attributes {id = 1 : i32} {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c2 = arith.constant 2 : index
      %c32 = arith.constant 32 : index
      %c64 = arith.constant 64 : index
      %begin = air.wait_all async
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
          %lut_out_one = air.channel.put async [%row] @rope_pingpong_0[%px, %py] (%lut_1[%i, %c0] [%c1, %c32] [%c32, %c1]) {id = 1 : i32} : (memref<8x32xbf16>)
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
          %x_out_one = air.channel.put async [%row] @rope_pingpong_1[%px, %py] (%x_1[%i, %c0, %c0] [%c1, %c1, %c64] [%c64, %c64, %c1]) {id = 2 : i32} : (memref<8x64xbf16>)
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
          %result_in_one = air.channel.get async [%row] @rope_pingpong_2[%px, %py] (%out_1[%i, %c0, %c0] [%c1, %c1, %c64] [%c64, %c64, %c1]) {id = 3 : i32} : (memref<8x64xbf16>)
          scf.yield %result_in_one : !air.async.token
        }
        scf.reduce(%result_in_rows : !air.async.token) {
        ^bb0(%left: !air.async.token, %right: !air.async.token):
          %both = air.wait_all async [%left, %right]
          scf.reduce.return %both : !air.async.token
        }
      }
      %segment = air.segment @rope_segment async attributes {id = 2 : i32} {
        %c1 = arith.constant 1 : index
        %c2 = arith.constant 2 : index
        %herd = air.herd @rope_herd async tile (%hx, %hy) in (%nx=%c2, %ny=%c1) attributes {id = 3 : i32} {
          %c2 = arith.constant 2 : index
          %heads = arith.constant 2 : i32
          %dim = arith.constant 32 : i32
          %first = affine.apply #first()[%hx]
          %after = affine.apply #after()[%hx]
          %ready = air.wait_all async
          %l1_out1_new, %l1_out1 = air.execute [%ready] -> (memref<64xbf16, 2>) {
            %alloc = memref.alloc() : memref<64xbf16, 2>
            air.execute_terminator %alloc : memref<64xbf16, 2>
          } {unrolled_iteration = 1 : i32}
          %l1_x1_new, %l1_x1 = air.execute [%l1_out1_new] -> (memref<64xbf16, 2>) {
            %alloc = memref.alloc() : memref<64xbf16, 2>
            air.execute_terminator %alloc : memref<64xbf16, 2>
          } {unrolled_iteration = 1 : i32}
          %l1_lut1_new, %l1_lut1 = air.execute [%l1_x1_new] -> (memref<32xbf16, 2>) {
            %alloc = memref.alloc() : memref<32xbf16, 2>
            air.execute_terminator %alloc : memref<32xbf16, 2>
          } {unrolled_iteration = 1 : i32}
          %l1_out0_new, %l1_out0 = air.execute [%l1_lut1_new] -> (memref<64xbf16, 2>) {
            %alloc = memref.alloc() : memref<64xbf16, 2>
            air.execute_terminator %alloc : memref<64xbf16, 2>
          } {unrolled_iteration = 0 : i32}
          %l1_x0_new, %l1_x0 = air.execute [%l1_out0_new] -> (memref<64xbf16, 2>) {
            %alloc = memref.alloc() : memref<64xbf16, 2>
            air.execute_terminator %alloc : memref<64xbf16, 2>
          } {unrolled_iteration = 0 : i32}
          %l1_lut0_new, %l1_lut0 = air.execute [%l1_x0_new] -> (memref<32xbf16, 2>) {
            %alloc = memref.alloc() : memref<32xbf16, 2>
            air.execute_terminator %alloc : memref<32xbf16, 2>
          } {unrolled_iteration = 0 : i32}
          %rows:4 = scf.for %i = %first to %after step %c2 iter_args(%ping = %l1_lut0_new, %pong = %l1_lut0_new, %back = %l1_lut0_new, %front = %l1_lut0_new) -> (!air.async.token, !air.async.token, !air.async.token, !air.async.token) {
            %in_lut0 = air.channel.get async [%front, %ping] @rope_pingpong_0[%hx, %hy] (%l1_lut0[] [] []) {id = 4 : i32, unrolled_iteration = 0 : i32} : (memref<32xbf16, 2>)
            %in_x0 = air.channel.get async [%front, %ping] @rope_pingpong_1[%hx, %hy] (%l1_x0[] [] []) {id = 5 : i32, unrolled_iteration = 0 : i32} : (memref<64xbf16, 2>)
            %in0 = air.wait_all async [%in_lut0, %in_x0]
            %turned0 = air.execute [%back, %in0] {
              func.call @rope_2x32(%l1_x0, %l1_lut0, %l1_out0, %heads, %dim) : (memref<64xbf16, 2>, memref<32xbf16, 2>, memref<64xbf16, 2>, i32, i32) -> ()
            } {unrolled_iteration = 0 : i32}
            %stored0 = air.channel.put async [%turned0] @rope_pingpong_2[%hx, %hy] (%l1_out0[] [] []) {id = 6 : i32, unrolled_iteration = 0 : i32} : (memref<64xbf16, 2>)
            %in_lut1 = air.channel.get async [%in0, %pong] @rope_pingpong_0[%hx, %hy] (%l1_lut1[] [] []) {id = 7 : i32, unrolled_iteration = 1 : i32} : (memref<32xbf16, 2>)
            %in_x1 = air.channel.get async [%in0, %pong] @rope_pingpong_1[%hx, %hy] (%l1_x1[] [] []) {id = 8 : i32, unrolled_iteration = 1 : i32} : (memref<64xbf16, 2>)
            %in1 = air.wait_all async [%in_lut1, %in_x1]
            %turned1 = air.execute [%stored0, %in1] {
              func.call @rope_2x32(%l1_x1, %l1_lut1, %l1_out1, %heads, %dim) : (memref<64xbf16, 2>, memref<32xbf16, 2>, memref<64xbf16, 2>, i32, i32) -> ()
            } {unrolled_iteration = 1 : i32}
            %stored1 = air.channel.put async [%turned1] @rope_pingpong_2[%hx, %hy] (%l1_out1[] [] []) {id = 9 : i32, unrolled_iteration = 1 : i32} : (memref<64xbf16, 2>)
            scf.yield %stored0, %stored1, %stored1, %in1 : !air.async.token, !air.async.token, !air.async.token, !air.async.token
          } {unroll = 2 : i32}
          %end = air.wait_all async [%rows#0, %rows#1, %rows#2, %rows#3]
          %free_lut0 = air.execute [%end] {
            memref.dealloc %l1_lut0 : memref<32xbf16, 2>
          } {unrolled_iteration = 0 : i32}
          %free_x0 = air.execute [%end] {
            memref.dealloc %l1_x0 : memref<64xbf16, 2>
          } {unrolled_iteration = 0 : i32}
          %free_out0 = air.execute [%end] {
            memref.dealloc %l1_out0 : memref<64xbf16, 2>
          } {unrolled_iteration = 0 : i32}
          %free_lut1 = air.execute [%end] {
            memref.dealloc %l1_lut1 : memref<32xbf16, 2>
          } {unrolled_iteration = 1 : i32}
          %free_x1 = air.execute [%end] {
            memref.dealloc %l1_x1 : memref<64xbf16, 2>
          } {unrolled_iteration = 1 : i32}
          %free_out1 = air.execute [%end] {
            memref.dealloc %l1_out1 : memref<64xbf16, 2>
          } {unrolled_iteration = 1 : i32}
        }
      }
    }
    return
  }
}
