// gemm, m=32 k=64 n=16, tiles 8x8 of K 32 in L2 and 8 in L1, herd 2x2, after air-specialize-dma-broadcast:
// the rows of a go to a row of tiles, the columns of b to a column of them, distinguished by affine.if.
#by16 = affine_map<()[s0] -> (s0 * 16)>
#by8 = affine_map<()[s0] -> (s0 * 8)>
#mk = affine_map<(d0, d1, d2) -> (d0, d2)>
#kn = affine_map<(d0, d1, d2) -> (d2, d1)>
#mn = affine_map<(d0, d1, d2) -> (d0, d1)>
#row0 = affine_set<()[s0, s1] : (s0 == 0, s1 >= 0, -s1 + 1 >= 0)>
#row1 = affine_set<()[s0, s1] : (s0 - 1 == 0, s1 >= 0, -s1 + 1 >= 0)>
#col0 = affine_set<()[s0, s1] : (s0 >= 0, -s0 + 1 >= 0, s1 == 0)>
#col1 = affine_set<()[s0, s1] : (s0 >= 0, -s0 + 1 >= 0, s1 - 1 == 0)>
module {
  func.func @gemm_specialized(%a: memref<32x64xbf16>, %b: memref<64x16xbf16>, %c: memref<32x16xbf16>) {
    %c1 = arith.constant 1 : index
    %c2 = arith.constant 2 : index
    %launched = air.launch async (%lx, %ly) in (%lsx=%c2, %lsy=%c1) args(%a_1=%a, %b_1=%b, %c_1=%c) : memref<32x64xbf16>, memref<64x16xbf16>, memref<32x16xbf16> attributes {id = 1 : i32} {
      %segment = air.segment @gemm_segment async args(%sx=%lx, %sy=%ly, %a_2=%a_1, %b_2=%b_1, %c_2=%c_1) : index, index, memref<32x64xbf16>, memref<64x16xbf16>, memref<32x16xbf16> attributes {id = 2 : i32} {
        %c0 = arith.constant 0 : index
        %c1 = arith.constant 1 : index
        %c2 = arith.constant 2 : index
        %c16 = arith.constant 16 : index
        %c32 = arith.constant 32 : index
        %c64 = arith.constant 64 : index
        %l2_a_new, %l2_a = air.execute -> (memref<16x32xbf16, 1>) {
          %alloc = memref.alloc() : memref<16x32xbf16, 1>
          air.execute_terminator %alloc : memref<16x32xbf16, 1>
        } {id = 1 : i32}
        %l2_b_new, %l2_b = air.execute -> (memref<32x16xbf16, 1>) {
          %alloc = memref.alloc() : memref<32x16xbf16, 1>
          air.execute_terminator %alloc : memref<32x16xbf16, 1>
        } {id = 2 : i32}
        %l2_c_new, %l2_c = air.execute -> (memref<16x16xbf16, 1>) {
          %alloc = memref.alloc() : memref<16x16xbf16, 1>
          air.execute_terminator %alloc : memref<16x16xbf16, 1>
        } {id = 3 : i32}
        %acc_new, %acc = air.execute -> (memref<2x2x1x1x8x8xf32, 2>) {
          %alloc = memref.alloc() : memref<2x2x1x1x8x8xf32, 2>
          air.execute_terminator %alloc : memref<2x2x1x1x8x8xf32, 2>
        } {id = 4 : i32}
        %cleared = air.herd @gemm_herd async [%acc_new] tile (%hx, %hy) in (%nx=%c2, %ny=%c2) args(%acc_1=%acc) : memref<2x2x1x1x8x8xf32, 2> attributes {id = 3 : i32} {
          %c0 = arith.constant 0 : index
          %blank = arith.constant dense<0.000000e+00> : vector<8x8xf32>
          %wiped = air.execute {
            vector.transfer_write %blank, %acc_1[%hx, %hy, %c0, %c0, %c0, %c0] {in_bounds = [true, true]} : vector<8x8xf32>, memref<2x2x1x1x8x8xf32, 2>
          } {id = 5 : i32}
        }
        %begun = air.wait_all async [%l2_a_new, %l2_b_new, %cleared] {id = 1 : i32}
        %deep = scf.for %k = %c0 to %c64 step %c32 iter_args(%before = %begun) -> (!air.async.token) {
          %rows_known, %rows = air.execute [%before] -> (index) {
            %pos = affine.apply #by16()[%sx]
            air.execute_terminator %pos : index
          } {id = 6 : i32}
          %l2_in_a = air.dma_memcpy_nd async [%rows_known] (%l2_a[] [] [], %a_2[%rows, %k] [%c16, %c32] [%c64, %c1]) {id = 1 : i32} : (memref<16x32xbf16, 1>, memref<32x64xbf16>)
          %cols_known, %cols = air.execute [%before] -> (index) {
            %pos = affine.apply #by16()[%sy]
            air.execute_terminator %pos : index
          } {id = 7 : i32}
          %l2_in_b = air.dma_memcpy_nd async [%cols_known] (%l2_b[] [] [], %b_2[%k, %cols] [%c32, %c16] [%c16, %c1]) {id = 2 : i32} : (memref<32x16xbf16, 1>, memref<64x16xbf16>)
          %multiplied = air.herd @gemm_herd async [%before, %l2_in_a, %l2_in_b] tile (%hx, %hy) in (%nx=%c2, %ny=%c2) args(%l2_a_1=%l2_a, %l2_b_1=%l2_b, %acc_1=%acc) : memref<16x32xbf16, 1>, memref<32x16xbf16, 1>, memref<2x2x1x1x8x8xf32, 2> attributes {id = 4 : i32} {
            %c0 = arith.constant 0 : index
            %c1 = arith.constant 1 : index
            %c8 = arith.constant 8 : index
            %c16 = arith.constant 16 : index
            %c32 = arith.constant 32 : index
            %c128 = arith.constant 128 : index
            %c256 = arith.constant 256 : index
            %none = arith.constant 0.000000e+00 : f32
            %pad = arith.constant 0.000000e+00 : bf16
            %l1_a_new, %l1_a = air.execute -> (memref<1x1x8x8xbf16, 2>) {
              %alloc = memref.alloc() : memref<1x1x8x8xbf16, 2>
              air.execute_terminator %alloc : memref<1x1x8x8xbf16, 2>
            } {id = 8 : i32}
            %l1_b_new, %l1_b = air.execute -> (memref<1x1x8x8xbf16, 2>) {
              %alloc = memref.alloc() : memref<1x1x8x8xbf16, 2>
              air.execute_terminator %alloc : memref<1x1x8x8xbf16, 2>
            } {id = 9 : i32}
            %m_known, %m = air.execute -> (index) {
              %pos = affine.apply #by8()[%hx]
              air.execute_terminator %pos : index
            } {id = 10 : i32}
            %n_known, %n = air.execute -> (index) {
              %pos = affine.apply #by8()[%hy]
              air.execute_terminator %pos : index
            } {id = 11 : i32}
            %ready = air.wait_all async [%l1_a_new, %l1_b_new, %m_known, %n_known] {id = 2 : i32}
            %steps = scf.for %d = %c0 to %c32 step %c8 iter_args(%step = %ready) -> (!air.async.token) {
              %in_a = affine.if #row0()[%hx, %hy] -> !air.async.token {
                %one = air.dma_memcpy_nd async [%step] (%l1_a[] [] [], %l2_a_1[%c0, %c0, %c0, %d] [%c1, %c1, %c8, %c8] [%c8, %c256, %c32, %c1]) {broadcast_set = #row0, id = 3 : i32} : (memref<1x1x8x8xbf16, 2>, memref<16x32xbf16, 1>)
                affine.yield %one : !air.async.token
              } else {
                %one = air.dma_memcpy_nd async [%step] (%l1_a[] [] [], %l2_a_1[%c0, %c0, %c8, %d] [%c1, %c1, %c8, %c8] [%c8, %c256, %c32, %c1]) {broadcast_set = #row1, id = 4 : i32} : (memref<1x1x8x8xbf16, 2>, memref<16x32xbf16, 1>)
                affine.yield %one : !air.async.token
              }
              %in_b = affine.if #col0()[%hx, %hy] -> !air.async.token {
                %one = air.dma_memcpy_nd async [%step] (%l1_b[] [] [], %l2_b_1[%c0, %c0, %d, %c0] [%c1, %c1, %c8, %c8] [%c8, %c128, %c16, %c1]) {broadcast_set = #col0, id = 5 : i32} : (memref<1x1x8x8xbf16, 2>, memref<32x16xbf16, 1>)
                affine.yield %one : !air.async.token
              } else {
                %one = air.dma_memcpy_nd async [%step] (%l1_b[] [] [], %l2_b_1[%c0, %c0, %d, %c8] [%c1, %c1, %c8, %c8] [%c8, %c128, %c16, %c1]) {broadcast_set = #col1, id = 6 : i32} : (memref<1x1x8x8xbf16, 2>, memref<32x16xbf16, 1>)
                affine.yield %one : !air.async.token
              }
              %filled = air.wait_all async [%step, %in_a, %in_b] {id = 3 : i32}
              %added = scf.for %j = %c0 to %c1 step %c1 iter_args(%jt = %filled) -> (!air.async.token) {
                %added_rows = scf.for %i = %c0 to %c1 step %c1 iter_args(%it = %jt) -> (!air.async.token) {
                  %added_t0, %added_c = air.execute [%it] -> (vector<8x8xf32>) {
                    %v = vector.transfer_read %acc_1[%hx, %hy, %j, %i, %c0, %c0], %none {in_bounds = [true, true]} : memref<2x2x1x1x8x8xf32, 2>, vector<8x8xf32>
                    air.execute_terminator %v : vector<8x8xf32>
                  } {id = 12 : i32}
                  %added_k:2 = scf.for %e = %c0 to %c1 step %c1 iter_args(%sum = %added_c, %kt = %added_t0) -> (vector<8x8xf32>, !air.async.token) {
                    %added_ta, %added_a = air.execute [%kt] -> (vector<8x8xbf16>) {
                      %v = vector.transfer_read %l1_a[%e, %i, %c0, %c0], %pad {in_bounds = [true, true]} : memref<1x1x8x8xbf16, 2>, vector<8x8xbf16>
                      air.execute_terminator %v : vector<8x8xbf16>
                    } {id = 13 : i32}
                    %added_tb, %added_b = air.execute [%kt] -> (vector<8x8xbf16>) {
                      %v = vector.transfer_read %l1_b[%j, %e, %c0, %c0], %pad {in_bounds = [true, true]} : memref<1x1x8x8xbf16, 2>, vector<8x8xbf16>
                      air.execute_terminator %v : vector<8x8xbf16>
                    } {id = 14 : i32}
                    %added_m = vector.contract {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"], kind = #vector.kind<add>} %added_a, %added_b, %sum : vector<8x8xbf16>, vector<8x8xbf16> into vector<8x8xf32>
                    %added_read = air.wait_all async [%added_ta, %added_tb] {id = 4 : i32}
                    scf.yield %added_m, %added_read : vector<8x8xf32>, !air.async.token
                  }
                  %added_w = air.execute [%added_k#1] {
                    vector.transfer_write %added_k#0, %acc_1[%hx, %hy, %j, %i, %c0, %c0] {in_bounds = [true, true]} : vector<8x8xf32>, memref<2x2x1x1x8x8xf32, 2>
                  } {id = 15 : i32}
                  scf.yield %added_w : !air.async.token
                }
                scf.yield %added_rows : !air.async.token
              }
              %stepped = air.wait_all async [%in_a, %in_b, %added] {id = 5 : i32}
              scf.yield %stepped : !air.async.token
            }
            %free_a = air.execute [%steps] {
              memref.dealloc %l1_a : memref<1x1x8x8xbf16, 2>
            } {id = 16 : i32}
            %free_b = air.execute [%steps] {
              memref.dealloc %l1_b : memref<1x1x8x8xbf16, 2>
            } {id = 17 : i32}
          }
          %after = air.wait_all async [%l2_in_a, %l2_in_b, %multiplied] {id = 6 : i32}
          scf.yield %after : !air.async.token
        }
        %drained = air.herd @gemm_herd async [%deep, %l2_c_new] tile (%hx, %hy) in (%nx=%c2, %ny=%c2) args(%acc_1=%acc, %l2_c_1=%l2_c) : memref<2x2x1x1x8x8xf32, 2>, memref<16x16xbf16, 1> attributes {id = 5 : i32} {
          %c0 = arith.constant 0 : index
          %c1 = arith.constant 1 : index
          %c8 = arith.constant 8 : index
          %c16 = arith.constant 16 : index
          %c64 = arith.constant 64 : index
          %m_known, %m = air.execute -> (index) {
            %pos = affine.apply #by8()[%hx]
            air.execute_terminator %pos : index
          } {id = 18 : i32}
          %n_known, %n = air.execute -> (index) {
            %pos = affine.apply #by8()[%hy]
            air.execute_terminator %pos : index
          } {id = 19 : i32}
          %none = arith.constant 0.000000e+00 : f32
          %rounded_new, %rounded = air.execute -> (memref<1x1x8x8xbf16, 2>) {
            %alloc = memref.alloc() : memref<1x1x8x8xbf16, 2>
            air.execute_terminator %alloc : memref<1x1x8x8xbf16, 2>
          } {id = 20 : i32}
          %summed, %sums = air.execute -> (vector<8x8xf32>) {
            %v = vector.transfer_read %acc_1[%hx, %hy, %c0, %c0, %c0, %c0], %none {in_bounds = [true, true]} : memref<2x2x1x1x8x8xf32, 2>, vector<8x8xf32>
            air.execute_terminator %v : vector<8x8xf32>
          } {id = 21 : i32}
          %narrow = arith.truncf %sums : vector<8x8xf32> to vector<8x8xbf16>
          %written = air.execute [%rounded_new, %summed] {
            vector.transfer_write %narrow, %rounded[%c0, %c0, %c0, %c0] {in_bounds = [true, true]} : vector<8x8xbf16>, memref<1x1x8x8xbf16, 2>
          } {id = 22 : i32}
          %stored = air.dma_memcpy_nd async [%written, %m_known, %n_known] (%l2_c_1[%m, %n] [%c8, %c8] [%c16, %c1], %rounded[%c0, %c0, %c0] [%c8, %c1, %c8] [%c8, %c64, %c1]) {id = 7 : i32} : (memref<16x16xbf16, 1>, memref<1x1x8x8xbf16, 2>)
          %free_rounded = air.execute [%stored] {
            memref.dealloc %rounded : memref<1x1x8x8xbf16, 2>
          } {id = 23 : i32}
        }
        %to_known, %to_row = air.execute -> (index) {
          %pos = affine.apply #by16()[%sx]
          air.execute_terminator %pos : index
        } {id = 24 : i32}
        %to_known_2, %to_col = air.execute -> (index) {
          %pos = affine.apply #by16()[%sy]
          air.execute_terminator %pos : index
        } {id = 25 : i32}
        %l3_out = air.dma_memcpy_nd async [%drained, %to_known, %to_known_2] (%c_2[%to_row, %to_col] [%c16, %c16] [%c16, %c1], %l2_c[] [] []) {id = 8 : i32} : (memref<32x16xbf16>, memref<16x16xbf16, 1>)
        %free_l2_a = air.execute [%deep] {
          memref.dealloc %l2_a : memref<16x32xbf16, 1>
        } {id = 26 : i32}
        %free_l2_b = air.execute [%deep] {
          memref.dealloc %l2_b : memref<32x16xbf16, 1>
        } {id = 27 : i32}
        %free_l2_c = air.execute [%l3_out] {
          memref.dealloc %l2_c : memref<16x16xbf16, 1>
        } {id = 28 : i32}
        %free_acc = air.execute [%drained] {
          memref.dealloc %acc : memref<2x2x1x1x8x8xf32, 2>
        } {id = 29 : i32}
      }
    }
    return
  }
}
