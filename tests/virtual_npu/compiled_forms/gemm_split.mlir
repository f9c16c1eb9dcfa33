// gemm, m=32 k=64 n=16, tiles 8x8 of K 32 in L2 and 8 in L1, herd 2x2, after air-split-l2-memref: every L2
// buffer is two, one for each row (a, c) or column (b) of tiles, so that it can stand in a memtile of its
// own; the channels to and from L3 are bundles, and launch and segment serve each of their members apart.
#by16 = affine_map<()[s0] -> (s0 * 16)>
#by8 = affine_map<()[s0] -> (s0 * 8)>
#mk = affine_map<(d0, d1, d2) -> (d0, d2)>
#kn = affine_map<(d0, d1, d2) -> (d2, d1)>
#mn = affine_map<(d0, d1, d2) -> (d0, d1)>
#row0 = affine_set<()[s0, s1] : (s0 == 0, s1 >= 0, -s1 + 1 >= 0)>
#row1 = affine_set<()[s0, s1] : (s0 - 1 == 0, s1 >= 0, -s1 + 1 >= 0)>
#col0 = affine_set<()[s0, s1] : (s0 >= 0, -s0 + 1 >= 0, s1 == 0)>
#col1 = affine_set<()[s0, s1] : (s0 >= 0, -s0 + 1 >= 0, s1 - 1 == 0)>
#by16and8 = affine_map<()[s0] -> (s0 * 16 + 8)>
module {
  air.channel @gemm_split_0 [2, 1]
  air.channel @gemm_split_1 [1, 2]
  air.channel @gemm_split_2_0 [1, 1] {broadcast_shape = [1, 2]}
  air.channel @gemm_split_2_1 [1, 1] {broadcast_shape = [1, 2]}
  air.channel @gemm_split_3_0 [1, 1] {broadcast_shape = [2, 1]}
  air.channel @gemm_split_3_1 [1, 1] {broadcast_shape = [2, 1]}
  air.channel @gemm_split_4 [2, 2]
  air.channel @gemm_split_5 [2, 1]
  func.func @gemm_split(%a: memref<32x64xbf16>, %b: memref<64x16xbf16>, %c: memref<32x16xbf16>) {
    %c1 = arith.constant 1 : index
    %c2 = arith.constant 2 : index
    %launched = air.launch async (%lx, %ly) in (%lsx=%c2, %lsy=%c1) args(%a_1=%a, %b_1=%b, %c_1=%c) : memref<32x64xbf16>, memref<64x16xbf16>, memref<32x16xbf16> attributes {id = 1 : i32} {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c16 = arith.constant 16 : index
      %c32 = arith.constant 32 : index
      %c64 = arith.constant 64 : index
      %c8 = arith.constant 8 : index
      %rows0_known, %rows0 = air.execute -> (index) {
        %pos = affine.apply #by16()[%lx]
        air.execute_terminator %pos : index
      }
      %rows1_known, %rows1 = air.execute -> (index) {
        %pos = affine.apply #by16and8()[%lx]
        air.execute_terminator %pos : index
      }
      %cols0_known, %cols0 = air.execute -> (index) {
        %pos = affine.apply #by16()[%ly]
        air.execute_terminator %pos : index
      }
      %cols1_known, %cols1 = air.execute -> (index) {
        %pos = affine.apply #by16and8()[%ly]
        air.execute_terminator %pos : index
      }
      %placed = air.wait_all async [%rows0_known, %rows1_known, %cols0_known, %cols1_known]
      %c_in0 = air.channel.get async [%rows0_known, %cols0_known] @gemm_split_5[%c0, %c0] (%c_1[%rows0, %cols0] [%c8, %c16] [%c16, %c1]) {id = 1 : i32} : (memref<32x16xbf16>)
      %c_in1 = air.channel.get async [%rows1_known, %cols0_known] @gemm_split_5[%c1, %c0] (%c_1[%rows1, %cols0] [%c8, %c16] [%c16, %c1]) {id = 2 : i32} : (memref<32x16xbf16>)
      %a_out0 = scf.for %k = %c0 to %c64 step %c32 iter_args(%before = %placed) -> (!air.async.token) {
        %one = air.channel.put async [%before] @gemm_split_0[%c0, %c0] (%a_1[%rows0, %k] [%c8, %c32] [%c64, %c1]) {id = 3 : i32} : (memref<32x64xbf16>)
        scf.yield %one : !air.async.token
      }
      %b_out0 = scf.for %k = %c0 to %c64 step %c32 iter_args(%before = %placed) -> (!air.async.token) {
        %one = air.channel.put async [%before] @gemm_split_1[%c0, %c0] (%b_1[%k, %cols0] [%c32, %c8] [%c16, %c1]) {id = 4 : i32} : (memref<64x16xbf16>)
        scf.yield %one : !air.async.token
      }
      %a_out1 = scf.for %k = %c0 to %c64 step %c32 iter_args(%before = %placed) -> (!air.async.token) {
        %one = air.channel.put async [%before] @gemm_split_0[%c1, %c0] (%a_1[%rows1, %k] [%c8, %c32] [%c64, %c1]) {id = 5 : i32} : (memref<32x64xbf16>)
        scf.yield %one : !air.async.token
      }
      %b_out1 = scf.for %k = %c0 to %c64 step %c32 iter_args(%before = %placed) -> (!air.async.token) {
        %one = air.channel.put async [%before] @gemm_split_1[%c0, %c1] (%b_1[%k, %cols1] [%c32, %c8] [%c16, %c1]) {id = 6 : i32} : (memref<64x16xbf16>)
        scf.yield %one : !air.async.token
      }
      %segment = air.segment @gemm_segment async attributes {id = 2 : i32} {
        %c0 = arith.constant 0 : index
        %c1 = arith.constant 1 : index
        %c2 = arith.constant 2 : index
        %c8 = arith.constant 8 : index
        %c16 = arith.constant 16 : index
        %c32 = arith.constant 32 : index
        %c64 = arith.constant 64 : index
        %c128 = arith.constant 128 : index
        %c256 = arith.constant 256 : index
        %acc_new, %acc = air.execute -> (memref<2x2x1x1x8x8xf32, 2>) {
          %alloc = memref.alloc() : memref<2x2x1x1x8x8xf32, 2>
          air.execute_terminator %alloc : memref<2x2x1x1x8x8xf32, 2>
        }
        %cleared = air.herd @gemm_herd async [%acc_new] tile (%hx, %hy) in (%nx=%c2, %ny=%c2) args(%acc_1=%acc) : memref<2x2x1x1x8x8xf32, 2> attributes {id = 3 : i32} {
          %c0 = arith.constant 0 : index
          %blank = arith.constant dense<0.000000e+00> : vector<8x8xf32>
          %wiped = air.execute {
            vector.transfer_write %blank, %acc_1[%hx, %hy, %c0, %c0, %c0, %c0] {in_bounds = [true, true]} : vector<8x8xf32>, memref<2x2x1x1x8x8xf32, 2>
          } {id = 1 : i32}
        }
        %l2_a0_new, %l2_a0 = air.execute -> (memref<8x32xbf16, 1>) {
          %alloc = memref.alloc() : memref<8x32xbf16, 1>
          air.execute_terminator %alloc : memref<8x32xbf16, 1>
        }
        %a_deep0 = scf.for %k = %c0 to %c64 step %c32 iter_args(%before = %l2_a0_new) -> (!air.async.token) {
          %in = air.channel.get async [%before] @gemm_split_0[%c0, %c0] (%l2_a0[] [] []) {id = 7 : i32} : (memref<8x32xbf16, 1>)
          %fed = scf.for %d = %c0 to %c32 step %c8 iter_args(%step = %in) -> (!air.async.token) {
            %one = air.channel.put async [%step] @gemm_split_2_0[] (%l2_a0[%c0, %c0, %c0, %d] [%c1, %c1, %c8, %c8] [%c8, %c256, %c32, %c1]) {id = 8 : i32} : (memref<8x32xbf16, 1>)
            scf.yield %one : !air.async.token
          }
          scf.yield %fed : !air.async.token
        }
        %free_l2_a0 = air.execute [%a_deep0] {
          memref.dealloc %l2_a0 : memref<8x32xbf16, 1>
        }
        %l2_a1_new, %l2_a1 = air.execute -> (memref<8x32xbf16, 1>) {
          %alloc = memref.alloc() : memref<8x32xbf16, 1>
          air.execute_terminator %alloc : memref<8x32xbf16, 1>
        }
        %a_deep1 = scf.for %k = %c0 to %c64 step %c32 iter_args(%before = %l2_a1_new) -> (!air.async.token) {
          %in = air.channel.get async [%before] @gemm_split_0[%c1, %c0] (%l2_a1[] [] []) {id = 9 : i32} : (memref<8x32xbf16, 1>)
          %fed = scf.for %d = %c0 to %c32 step %c8 iter_args(%step = %in) -> (!air.async.token) {
            %one = air.channel.put async [%step] @gemm_split_2_1[] (%l2_a1[%c0, %c0, %c0, %d] [%c1, %c1, %c8, %c8] [%c8, %c256, %c32, %c1]) {id = 10 : i32} : (memref<8x32xbf16, 1>)
            scf.yield %one : !air.async.token
          }
          scf.yield %fed : !air.async.token
        }
        %free_l2_a1 = air.execute [%a_deep1] {
          memref.dealloc %l2_a1 : memref<8x32xbf16, 1>
        }
        %l2_b0_new, %l2_b0 = air.execute -> (memref<32x8xbf16, 1>) {
          %alloc = memref.alloc() : memref<32x8xbf16, 1>
          air.execute_terminator %alloc : memref<32x8xbf16, 1>
        }
        %b_deep0 = scf.for %k = %c0 to %c64 step %c32 iter_args(%before = %l2_b0_new) -> (!air.async.token) {
          %in = air.channel.get async [%before] @gemm_split_1[%c0, %c0] (%l2_b0[] [] []) {id = 11 : i32} : (memref<32x8xbf16, 1>)
          %fed = scf.for %d = %c0 to %c32 step %c8 iter_args(%step = %in) -> (!air.async.token) {
            %one = air.channel.put async [%step] @gemm_split_3_0[] (%l2_b0[%c0, %c0, %d, %c0] [%c1, %c1, %c8, %c8] [%c8, %c64, %c8, %c1]) {id = 12 : i32} : (memref<32x8xbf16, 1>)
            scf.yield %one : !air.async.token
          }
          scf.yield %fed : !air.async.token
        }
        %free_l2_b0 = air.execute [%b_deep0] {
          memref.dealloc %l2_b0 : memref<32x8xbf16, 1>
        }
        %l2_b1_new, %l2_b1 = air.execute -> (memref<32x8xbf16, 1>) {
          %alloc = memref.alloc() : memref<32x8xbf16, 1>
          air.execute_terminator %alloc : memref<32x8xbf16, 1>
        }
        %b_deep1 = scf.for %k = %c0 to %c64 step %c32 iter_args(%before = %l2_b1_new) -> (!air.async.token) {
          %in = air.channel.get async [%before] @gemm_split_1[%c0, %c1] (%l2_b1[] [] []) {id = 13 : i32} : (memref<32x8xbf16, 1>)
          %fed = scf.for %d = %c0 to %c32 step %c8 iter_args(%step = %in) -> (!air.async.token) {
            %one = air.channel.put async [%step] @gemm_split_3_1[] (%l2_b1[%c0, %c0, %d, %c0] [%c1, %c1, %c8, %c8] [%c8, %c64, %c8, %c1]) {id = 14 : i32} : (memref<32x8xbf16, 1>)
            scf.yield %one : !air.async.token
          }
          scf.yield %fed : !air.async.token
        }
        %free_l2_b1 = air.execute [%b_deep1] {
          memref.dealloc %l2_b1 : memref<32x8xbf16, 1>
        }
        %deep = air.herd @gemm_herd async [%cleared] tile (%hx, %hy) in (%nx=%c2, %ny=%c2) args(%acc_1=%acc) : memref<2x2x1x1x8x8xf32, 2> attributes {id = 4 : i32} {
          %c0 = arith.constant 0 : index
          %c8 = arith.constant 8 : index
          %c32 = arith.constant 32 : index
          %c64 = arith.constant 64 : index
          %none = arith.constant 0.000000e+00 : f32
          %pad = arith.constant 0.000000e+00 : bf16
          %l1_a_new, %l1_a = air.execute -> (memref<1x1x8x8xbf16, 2>) {
            %alloc = memref.alloc() : memref<1x1x8x8xbf16, 2>
            air.execute_terminator %alloc : memref<1x1x8x8xbf16, 2>
          }
          %l1_b_new, %l1_b = air.execute -> (memref<1x1x8x8xbf16, 2>) {
            %alloc = memref.alloc() : memref<1x1x8x8xbf16, 2>
            air.execute_terminator %alloc : memref<1x1x8x8xbf16, 2>
          }
          %ready = air.wait_all async [%l1_a_new, %l1_b_new]
          %deep = scf.for %k = %c0 to %c64 step %c32 iter_args(%k_before = %ready) -> (!air.async.token) {
            %steps = scf.for %d = %c0 to %c32 step %c8 iter_args(%step = %k_before) -> (!air.async.token) {
              %in_a = affine.if #row0()[%hx, %hy] -> !air.async.token {
                %one = air.channel.get async [%step] @gemm_split_2_0[%hx, %hy] (%l1_a[] [] []) {id = 15 : i32} : (memref<1x1x8x8xbf16, 2>)
                affine.yield %one : !air.async.token
              } else {
                %one = air.channel.get async [%step] @gemm_split_2_1[%hx, %hy] (%l1_a[] [] []) {id = 16 : i32} : (memref<1x1x8x8xbf16, 2>)
                affine.yield %one : !air.async.token
              }
              %in_b = affine.if #col0()[%hx, %hy] -> !air.async.token {
                %one = air.channel.get async [%step] @gemm_split_3_0[%hx, %hy] (%l1_b[] [] []) {id = 17 : i32} : (memref<1x1x8x8xbf16, 2>)
                affine.yield %one : !air.async.token
              } else {
                %one = air.channel.get async [%step] @gemm_split_3_1[%hx, %hy] (%l1_b[] [] []) {id = 18 : i32} : (memref<1x1x8x8xbf16, 2>)
                affine.yield %one : !air.async.token
              }
              %filled = air.wait_all async [%step, %in_a, %in_b]
              %added_t0, %added_c = air.execute [%filled] -> (vector<8x8xf32>) {
                %v = vector.transfer_read %acc_1[%hx, %hy, %c0, %c0, %c0, %c0], %none {in_bounds = [true, true]} : memref<2x2x1x1x8x8xf32, 2>, vector<8x8xf32>
                air.execute_terminator %v : vector<8x8xf32>
              }
              %added_ta, %added_a = air.execute [%filled] -> (vector<8x8xbf16>) {
                %v = vector.transfer_read %l1_a[%c0, %c0, %c0, %c0], %pad {in_bounds = [true, true]} : memref<1x1x8x8xbf16, 2>, vector<8x8xbf16>
                air.execute_terminator %v : vector<8x8xbf16>
              }
              %added_tb, %added_b = air.execute [%filled] -> (vector<8x8xbf16>) {
                %v = vector.transfer_read %l1_b[%c0, %c0, %c0, %c0], %pad {in_bounds = [true, true]} : memref<1x1x8x8xbf16, 2>, vector<8x8xbf16>
                air.execute_terminator %v : vector<8x8xbf16>
              }
              %added_m = vector.contract {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"], kind = #vector.kind<add>} %added_a, %added_b, %added_c : vector<8x8xbf16>, vector<8x8xbf16> into vector<8x8xf32>
              %added = air.execute [%added_t0, %added_ta, %added_tb] {
                vector.transfer_write %added_m, %acc_1[%hx, %hy, %c0, %c0, %c0, %c0] {in_bounds = [true, true]} : vector<8x8xf32>, memref<2x2x1x1x8x8xf32, 2>
              }
              %stepped = air.wait_all async [%in_a, %in_b, %added]
              scf.yield %stepped : !air.async.token
            }
            scf.yield %steps : !air.async.token
          }
          %free_a = air.execute [%deep] {
            memref.dealloc %l1_a : memref<1x1x8x8xbf16, 2>
          }
          %free_b = air.execute [%deep] {
            memref.dealloc %l1_b : memref<1x1x8x8xbf16, 2>
          }
        }
        %l2_c0_new, %l2_c0 = air.execute -> (memref<8x16xbf16, 1>) {
          %alloc = memref.alloc() : memref<8x16xbf16, 1>
          air.execute_terminator %alloc : memref<8x16xbf16, 1>
        }
        %row0_0 = air.channel.get async [%l2_c0_new] @gemm_split_4[%c0, %c0] (%l2_c0[%c0, %c0] [%c8, %c8] [%c16, %c1]) {id = 19 : i32} : (memref<8x16xbf16, 1>)
        %row0_1 = air.channel.get async [%l2_c0_new] @gemm_split_4[%c0, %c1] (%l2_c0[%c0, %c8] [%c8, %c8] [%c16, %c1]) {id = 20 : i32} : (memref<8x16xbf16, 1>)
        %l2_out0 = air.channel.put async [%row0_0, %row0_1] @gemm_split_5[%c0, %c0] (%l2_c0[] [] []) {id = 21 : i32} : (memref<8x16xbf16, 1>)
        %free_l2_c0 = air.execute [%l2_out0] {
          memref.dealloc %l2_c0 : memref<8x16xbf16, 1>
        }
        %l2_c1_new, %l2_c1 = air.execute -> (memref<8x16xbf16, 1>) {
          %alloc = memref.alloc() : memref<8x16xbf16, 1>
          air.execute_terminator %alloc : memref<8x16xbf16, 1>
        }
        %row1_0 = air.channel.get async [%l2_c1_new] @gemm_split_4[%c1, %c0] (%l2_c1[%c0, %c0] [%c8, %c8] [%c16, %c1]) {id = 22 : i32} : (memref<8x16xbf16, 1>)
        %row1_1 = air.channel.get async [%l2_c1_new] @gemm_split_4[%c1, %c1] (%l2_c1[%c0, %c8] [%c8, %c8] [%c16, %c1]) {id = 23 : i32} : (memref<8x16xbf16, 1>)
        %l2_out1 = air.channel.put async [%row1_0, %row1_1] @gemm_split_5[%c1, %c0] (%l2_c1[] [] []) {id = 24 : i32} : (memref<8x16xbf16, 1>)
        %free_l2_c1 = air.execute [%l2_out1] {
          memref.dealloc %l2_c1 : memref<8x16xbf16, 1>
        }
        %drained = air.herd @gemm_herd async [%deep] tile (%hx, %hy) in (%nx=%c2, %ny=%c2) args(%acc_1=%acc) : memref<2x2x1x1x8x8xf32, 2> attributes {id = 5 : i32} {
          %c0 = arith.constant 0 : index
          %c1 = arith.constant 1 : index
          %c8 = arith.constant 8 : index
          %c64 = arith.constant 64 : index
          %none = arith.constant 0.000000e+00 : f32
          %rounded_new, %rounded = air.execute -> (memref<1x1x8x8xbf16, 2>) {
            %alloc = memref.alloc() : memref<1x1x8x8xbf16, 2>
            air.execute_terminator %alloc : memref<1x1x8x8xbf16, 2>
          } {id = 2 : i32}
          %summed, %sums = air.execute -> (vector<8x8xf32>) {
            %v = vector.transfer_read %acc_1[%hx, %hy, %c0, %c0, %c0, %c0], %none {in_bounds = [true, true]} : memref<2x2x1x1x8x8xf32, 2>, vector<8x8xf32>
            air.execute_terminator %v : vector<8x8xf32>
          } {id = 3 : i32}
          %narrow = arith.truncf %sums : vector<8x8xf32> to vector<8x8xbf16>
          %written = air.execute [%rounded_new, %summed] {
            vector.transfer_write %narrow, %rounded[%c0, %c0, %c0, %c0] {in_bounds = [true, true]} : vector<8x8xbf16>, memref<1x1x8x8xbf16, 2>
          } {id = 4 : i32}
          %stored = air.channel.put async [%written] @gemm_split_4[%hx, %hy] (%rounded[%c0, %c0, %c0] [%c8, %c1, %c8] [%c8, %c64, %c1]) {id = 25 : i32} : (memref<1x1x8x8xbf16, 2>)
          %free_rounded = air.execute [%stored] {
            memref.dealloc %rounded : memref<1x1x8x8xbf16, 2>
          } {id = 5 : i32}
        }
        %free_acc = air.execute [%drained] {
          memref.dealloc %acc : memref<2x2x1x1x8x8xf32, 2>
        }
      }
    }
    return
  }
}
