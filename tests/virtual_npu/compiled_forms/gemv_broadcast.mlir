// gemv, m=16 k=64 herd_m=2 tile_m=4 m_input=2, after air-dma-to-channel with broadcast: one put of x reaches
// every tile. The get is not in an affine.if, as canonicalize leaves it where the set holds all tiles.
#input = affine_map<()[s0, s1, s2] -> (s0 * 8 + s1 + s2)>
#output = affine_map<()[s0, s1] -> (s0 * 8 + s1)>
module {
  air.channel @gemv_broadcast_0 [1, 1] {broadcast_shape = [2, 1]}
  air.channel @gemv_broadcast_1 [2, 1]
  air.channel @gemv_broadcast_2 [2, 1]
  func.func private @matvec_vectorized_bf16_bf16_2x64_4(i32, i32, i32, memref<2x64xbf16, 2>, memref<64xbf16, 2>, memref<4xbf16, 2>) attributes {link_with = "mv_2x64_4.o", link_source = "mv.cc", link_defines = "DIM_M_OUTPUT=4 matvec_vectorized_bf16_bf16=matvec_vectorized_bf16_bf16_2x64_4 linalg_fill_bf16=linalg_fill_bf16_2x64_4", llvm.emit_c_interface}
  func.func @gemv_broadcast(%weight: memref<16x64xbf16>, %x: memref<64xbf16>, %out: memref<16xbf16>) {
    %launched = air.launch async () in () args(%x_1=%x, %weight_1=%weight, %out_1=%out) : memref<64xbf16>, memref<16x64xbf16>, memref<16xbf16> attributes {id = 1 : i32} {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c2 = arith.constant 2 : index
      %c4 = arith.constant 4 : index
      %c8 = arith.constant 8 : index
      %c64 = arith.constant 64 : index
      %begin = air.wait_all async
      %x_out = air.channel.put async [%begin] @gemv_broadcast_0[] (%x_1[] [] []) {id = 1 : i32} : (memref<64xbf16>)
      %rows_out = scf.parallel (%px, %py) = (%c0, %c0) to (%c2, %c1) step (%c1, %c1) init (%begin) -> !air.async.token {
        %rows_runs = scf.for %i = %c0 to %c8 step %c4 iter_args(%run = %begin) -> (!air.async.token) {
          %rows_rows = scf.for %j = %c0 to %c4 step %c2 iter_args(%row = %run) -> (!air.async.token) {
            %at_known, %at = air.execute [%row] -> (index) {
              %pos = affine.apply #input()[%px, %i, %j]
              air.execute_terminator %pos : index
            }
            %one = air.channel.put async [%at_known] @gemv_broadcast_1[%px, %py] (%weight_1[%at, %c0] [%c2, %c64] [%c64, %c1]) {id = 2 : i32} : (memref<16x64xbf16>)
            scf.yield %one : !air.async.token
          }
          scf.yield %rows_rows : !air.async.token
        }
        scf.reduce(%rows_runs : !air.async.token) {
        ^bb0(%left: !air.async.token, %right: !air.async.token):
          %both = air.wait_all async [%left, %right]
          scf.reduce.return %both : !air.async.token
        }
      }
      %result_in = scf.parallel (%px, %py) = (%c0, %c0) to (%c2, %c1) step (%c1, %c1) init (%begin) -> !air.async.token {
        %result_runs = scf.for %i = %c0 to %c8 step %c4 iter_args(%run = %begin) -> (!air.async.token) {
          %to_known, %to = air.execute [%run] -> (index) {
            %pos = affine.apply #output()[%px, %i]
            air.execute_terminator %pos : index
          }
          %one = air.channel.get async [%to_known] @gemv_broadcast_2[%px, %py] (%out_1[%to] [%c4] [%c1]) {id = 3 : i32} : (memref<16xbf16>)
          scf.yield %one : !air.async.token
        }
        scf.reduce(%result_runs : !air.async.token) {
        ^bb0(%left: !air.async.token, %right: !air.async.token):
          %both = air.wait_all async [%left, %right]
          scf.reduce.return %both : !air.async.token
        }
      }
      %segment = air.segment @gemv_segment async attributes {id = 2 : i32} {
        %c1 = arith.constant 1 : index
        %c2 = arith.constant 2 : index
        %herd = air.herd @gemv_herd async tile (%hx, %hy) in (%nx=%c2, %ny=%c1) attributes {id = 3 : i32} {
          %c0 = arith.constant 0 : index
          %c2 = arith.constant 2 : index
          %c4 = arith.constant 4 : index
          %c8 = arith.constant 8 : index
          %two = arith.constant 2 : i32
          %deep = arith.constant 64 : i32
          %l1_x_new, %l1_x = air.execute -> (memref<64xbf16, 2>) {
            %alloc = memref.alloc() : memref<64xbf16, 2>
            air.execute_terminator %alloc : memref<64xbf16, 2>
          }
          %l1_weight_new, %l1_weight = air.execute -> (memref<2x64xbf16, 2>) {
            %alloc = memref.alloc() : memref<2x64xbf16, 2>
            air.execute_terminator %alloc : memref<2x64xbf16, 2>
          }
          %l1_out_new, %l1_out = air.execute -> (memref<4xbf16, 2>) {
            %alloc = memref.alloc() : memref<4xbf16, 2>
            air.execute_terminator %alloc : memref<4xbf16, 2>
          }
          %in_x = air.channel.get async [%l1_x_new] @gemv_broadcast_0[%hx, %hy] (%l1_x[] [] []) {id = 4 : i32} : (memref<64xbf16, 2>)
          %ready = air.wait_all async [%in_x, %l1_weight_new, %l1_out_new]
          %runs = scf.for %i = %c0 to %c8 step %c4 iter_args(%run = %ready) -> (!air.async.token) {
            %rows = scf.for %j = %c0 to %c4 step %c2 iter_args(%row = %run) -> (!air.async.token) {
              %in_weight = air.channel.get async [%row] @gemv_broadcast_1[%hx, %hy] (%l1_weight[] [] []) {id = 5 : i32} : (memref<2x64xbf16, 2>)
              %offset = arith.index_cast %j : index to i32
              %made = air.execute [%row, %in_weight] {
                func.call @matvec_vectorized_bf16_bf16_2x64_4(%two, %deep, %offset, %l1_weight, %l1_x, %l1_out) : (i32, i32, i32, memref<2x64xbf16, 2>, memref<64xbf16, 2>, memref<4xbf16, 2>) -> ()
              }
              scf.yield %made : !air.async.token
            }
            %stored = air.channel.put async [%rows] @gemv_broadcast_2[%hx, %hy] (%l1_out[] [] []) {id = 6 : i32} : (memref<4xbf16, 2>)
            %done = air.wait_all async [%rows, %stored]
            scf.yield %done : !air.async.token
          }
          %free_x = air.execute [%runs] {
            memref.dealloc %l1_x : memref<64xbf16, 2>
          }
          %free_weight = air.execute [%runs] {
            memref.dealloc %l1_weight : memref<2x64xbf16, 2>
          }
          %free_out = air.execute [%runs] {
            memref.dealloc %l1_out : memref<4xbf16, 2>
          }
        }
      }
    }
    return
  }
}
