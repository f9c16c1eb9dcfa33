// gemm, m=32 k=64 n=16, tiles 8x8 of K 32 in L2 and 8 in L1, herd 2x2, after air-opt-memtile-dma-bds: the
// loops that feed the tiles are folded into a dimension of one transfer for each row or column; its 256
// elements meet four gets of 64.
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
  air.channel @gemm_folded_0 [1, 1]
  air.channel @gemm_folded_1 [1, 1]
  air.channel @gemm_folded_2_0 [1, 1] {broadcast_shape = [1, 2]}
  air.channel @gemm_folded_2_1 [1, 1] {broadcast_shape = [1, 2]}
  air.channel @gemm_folded_3_0 [1, 1] {broadcast_shape = [2, 1]}
  air.channel @gemm_folded_3_1 [1, 1] {broadcast_shape = [2, 1]}
  air.channel @gemm_folded_4 [2, 2]
  air.channel @gemm_folded_5 [1, 1]
  func.func @gemm_folded(%a: memref<32x64xbf16>, %b: memref<64x16xbf16>, %c: memref<32x16xbf16>) {
    %c1 = arith.constant 1 : index
    %c2 = arith.constant 2 : index
    %launched = air.launch async (%lx, %ly) in (%lsx=%c2, %lsy=%c1) args(%a_1=%a, %b_1=%b, %c_1=%c) : memref<32x64xbf16>, memref<64x16xbf16>, memref<32x16xbf16> attributes {id = 1 : i32} {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c16 = arith.constant 16 : index
      %c32 = arith.constant 32 : index
      %c64 = arith.constant 64 : index
      %rows_known, %rows = air.execute -> (index) {
        %pos = affine.apply #by16()[%lx]
        air.execute_terminator %pos : index
      }
      %cols_known, %cols = air.execute -> (index) {
        %pos = affine.apply #by16()[%ly]
        air.execute_terminator %pos : index
      }
      %placed = air.wait_all async [%rows_known, %cols_known]
      %c_in = air.channel.get async [%rows_known, %cols_known] @gemm_folded_5[] (%c_1[%rows, %cols] [%c16, %c16] [%c16, %c1]) {id = 1 : i32} : (memref<32x16xbf16>)
      %a_out = scf.for %k = %c0 to %c64 step %c32 iter_args(%k_before = %placed) -> (!air.async.token) {
        %one = air.channel.put async [%k_before] @gemm_folded_0[] (%a_1[%rows, %k] [%c16, %c32] [%c64, %c1]) {id = 2 : i32} : (memref<32x64xbf16>)
        scf.yield %one : !air.async.token
      }
      %b_out = scf.for %k = %c0 to %c64 step %c32 iter_args(%k_before = %placed) -> (!air.async.token) {
        %one = air.channel.put async [%k_before] @gemm_folded_1[] (%b_1[%k, %cols] [%c32, %c16] [%c16, %c1]) {id = 3 : i32} : (memref<64x16xbf16>)
        scf.yield %one : !air.async.token
      }
      %segment = air.segment @gemm_segment async attributes {id = 2 : i32} {
        %c0 = arith.constant 0 : index
        %c1 = arith.constant 1 : index
        %c2 = arith.constant 2 : index
        %c4 = arith.constant 4 : index
        %c8 = arith.constant 8 : index
        %c16 = arith.constant 16 : index
        %c32 = arith.constant 32 : index
        %c64 = arith.constant 64 : index
        %c128 = arith.constant 128 : index
        %c256 = arith.constant 256 : index
        %l2_c_new, %l2_c = air.execute -> (memref<16x16xbf16, 1>) {
          %alloc = memref.alloc() : memref<16x16xbf16, 1>
          air.execute_terminator %alloc : memref<16x16xbf16, 1>
        }
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
        %a_ready = air.wait_all async
        %l2_a1_new, %l2_a1 = air.execute [%a_ready] -> (memref<16x32xbf16, 1>) {
          %alloc = memref.alloc() : memref<16x32xbf16, 1>
          air.execute_terminator %alloc : memref<16x32xbf16, 1>
        } {unrolled_iteration = 1 : i32}
        %l2_a0_new, %l2_a0 = air.execute [%l2_a1_new] -> (memref<16x32xbf16, 1>) {
          %alloc = memref.alloc() : memref<16x32xbf16, 1>
          air.execute_terminator %alloc : memref<16x32xbf16, 1>
        } {unrolled_iteration = 0 : i32}
        %a_deep:4 = scf.for %k = %c0 to %c64 step %c64 iter_args(%ping = %l2_a0_new, %pong = %l2_a0_new, %back = %l2_a0_new, %front = %l2_a0_new) -> (!air.async.token, !air.async.token, !air.async.token, !air.async.token) {
          %a_in0 = air.channel.get async [%front, %ping] @gemm_folded_0[] (%l2_a0[] [] []) {id = 4 : i32, unrolled_iteration = 0 : i32} : (memref<16x32xbf16, 1>)
          %a_go0 = air.wait_all async [%back, %a_in0] {unrolled_iteration = 0 : i32}
          %a_fed0_0 = air.channel.put async [%a_go0] @gemm_folded_2_0[] (%l2_a0[%c0, %c0, %c0, %c0] [%c4, %c1, %c8, %c8] [%c8, %c256, %c32, %c1]) {id = 5 : i32} : (memref<16x32xbf16, 1>)
          %a_fed0_1 = air.channel.put async [%a_go0] @gemm_folded_2_1[] (%l2_a0[%c0, %c0, %c8, %c0] [%c4, %c1, %c8, %c8] [%c8, %c256, %c32, %c1]) {id = 6 : i32} : (memref<16x32xbf16, 1>)
          %a_fed0 = air.wait_all async [%a_fed0_0, %a_fed0_1] {unrolled_iteration = 0 : i32}
          %a_in1 = air.channel.get async [%a_in0, %pong] @gemm_folded_0[] (%l2_a1[] [] []) {id = 7 : i32, unrolled_iteration = 1 : i32} : (memref<16x32xbf16, 1>)
          %a_go1 = air.wait_all async [%a_fed0, %a_in1] {unrolled_iteration = 1 : i32}
          %a_fed1_0 = air.channel.put async [%a_go1] @gemm_folded_2_0[] (%l2_a1[%c0, %c0, %c0, %c0] [%c4, %c1, %c8, %c8] [%c8, %c256, %c32, %c1]) {id = 8 : i32} : (memref<16x32xbf16, 1>)
          %a_fed1_1 = air.channel.put async [%a_go1] @gemm_folded_2_1[] (%l2_a1[%c0, %c0, %c8, %c0] [%c4, %c1, %c8, %c8] [%c8, %c256, %c32, %c1]) {id = 9 : i32} : (memref<16x32xbf16, 1>)
          %a_fed1 = air.wait_all async [%a_fed1_0, %a_fed1_1] {unrolled_iteration = 1 : i32}
          scf.yield %a_fed0, %a_fed1, %a_fed1, %a_in1 : !air.async.token, !air.async.token, !air.async.token, !air.async.token
        } {unroll = 2 : i32}
        %a_end = air.wait_all async [%a_deep#0, %a_deep#1, %a_deep#2, %a_deep#3]
        %free_l2_a0 = air.execute [%a_end] {
          memref.dealloc %l2_a0 : memref<16x32xbf16, 1>
        } {unrolled_iteration = 0 : i32}
        %free_l2_a1 = air.execute [%a_end] {
          memref.dealloc %l2_a1 : memref<16x32xbf16, 1>
        } {unrolled_iteration = 1 : i32}
        %b_ready = air.wait_all async
        %l2_b1_new, %l2_b1 = air.execute [%b_ready] -> (memref<32x16xbf16, 1>) {
          %alloc = memref.alloc() : memref<32x16xbf16, 1>
          air.execute_terminator %alloc : memref<32x16xbf16, 1>
        } {unrolled_iteration = 1 : i32}
        %l2_b0_new, %l2_b0 = air.execute [%l2_b1_new] -> (memref<32x16xbf16, 1>) {
          %alloc = memref.alloc() : memref<32x16xbf16, 1>
          air.execute_terminator %alloc : memref<32x16xbf16, 1>
        } {unrolled_iteration = 0 : i32}
        %b_deep:4 = scf.for %k = %c0 to %c64 step %c64 iter_args(%ping = %l2_b0_new, %pong = %l2_b0_new, %back = %l2_b0_new, %front = %l2_b0_new) -> (!air.async.token, !air.async.token, !air.async.token, !air.async.token) {
          %b_in0 = air.channel.get async [%front, %ping] @gemm_folded_1[] (%l2_b0[] [] []) {id = 10 : i32, unrolled_iteration = 0 : i32} : (memref<32x16xbf16, 1>)
          %b_go0 = air.wait_all async [%back, %b_in0] {unrolled_iteration = 0 : i32}
          %b_fed0_0 = air.channel.put async [%b_go0] @gemm_folded_3_0[] (%l2_b0[%c0, %c0, %c0, %c0] [%c4, %c1, %c8, %c8] [%c128, %c128, %c16, %c1]) {id = 11 : i32} : (memref<32x16xbf16, 1>)
          %b_fed0_1 = air.channel.put async [%b_go0] @gemm_folded_3_1[] (%l2_b0[%c0, %c0, %c0, %c8] [%c4, %c1, %c8, %c8] [%c128, %c128, %c16, %c1]) {id = 12 : i32} : (memref<32x16xbf16, 1>)
          %b_fed0 = air.wait_all async [%b_fed0_0, %b_fed0_1] {unrolled_iteration = 0 : i32}
          %b_in1 = air.channel.get async [%b_in0, %pong] @gemm_folded_1[] (%l2_b1[] [] []) {id = 13 : i32, unrolled_iteration = 1 : i32} : (memref<32x16xbf16, 1>)
          %b_go1 = air.wait_all async [%b_fed0, %b_in1] {unrolled_iteration = 1 : i32}
          %b_fed1_0 = air.channel.put async [%b_go1] @gemm_folded_3_0[] (%l2_b1[%c0, %c0, %c0, %c0] [%c4, %c1, %c8, %c8] [%c128, %c128, %c16, %c1]) {id = 14 : i32} : (memref<32x16xbf16, 1>)
          %b_fed1_1 = air.channel.put async [%b_go1] @gemm_folded_3_1[] (%l2_b1[%c0, %c0, %c0, %c8] [%c4, %c1, %c8, %c8] [%c128, %c128, %c16, %c1]) {id = 15 : i32} : (memref<32x16xbf16, 1>)
          %b_fed1 = air.wait_all async [%b_fed1_0, %b_fed1_1] {unrolled_iteration = 1 : i32}
          scf.yield %b_fed0, %b_fed1, %b_fed1, %b_in1 : !air.async.token, !air.async.token, !air.async.token, !air.async.token
        } {unroll = 2 : i32}
        %b_end = air.wait_all async [%b_deep#0, %b_deep#1, %b_deep#2, %b_deep#3]
        %free_l2_b0 = air.execute [%b_end] {
          memref.dealloc %l2_b0 : memref<32x16xbf16, 1>
        } {unrolled_iteration = 0 : i32}
        %free_l2_b1 = air.execute [%b_end] {
          memref.dealloc %l2_b1 : memref<32x16xbf16, 1>
        } {unrolled_iteration = 1 : i32}
        %deep = air.herd @gemm_herd async [%cleared] tile (%hx, %hy) in (%nx=%c2, %ny=%c2) args(%acc_1=%acc) : memref<2x2x1x1x8x8xf32, 2> attributes {id = 4 : i32} {
          %c0 = arith.constant 0 : index
          %c16 = arith.constant 16 : index
          %c32 = arith.constant 32 : index
          %c64 = arith.constant 64 : index
          %none = arith.constant 0.000000e+00 : f32
          %pad = arith.constant 0.000000e+00 : bf16
          %ready = air.wait_all async
          %deep = scf.for %k = %c0 to %c64 step %c32 iter_args(%k_before = %ready) -> (!air.async.token) {
            %l1_b1_new, %l1_b1 = air.execute [%k_before] -> (memref<1x1x8x8xbf16, 2>) {
              %alloc = memref.alloc() : memref<1x1x8x8xbf16, 2>
              air.execute_terminator %alloc : memref<1x1x8x8xbf16, 2>
            } {unrolled_iteration = 1 : i32}
            %l1_a1_new, %l1_a1 = air.execute [%l1_b1_new] -> (memref<1x1x8x8xbf16, 2>) {
              %alloc = memref.alloc() : memref<1x1x8x8xbf16, 2>
              air.execute_terminator %alloc : memref<1x1x8x8xbf16, 2>
            } {unrolled_iteration = 1 : i32}
            %l1_b0_new, %l1_b0 = air.execute [%l1_a1_new] -> (memref<1x1x8x8xbf16, 2>) {
              %alloc = memref.alloc() : memref<1x1x8x8xbf16, 2>
              air.execute_terminator %alloc : memref<1x1x8x8xbf16, 2>
            } {unrolled_iteration = 0 : i32}
            %l1_a0_new, %l1_a0 = air.execute [%l1_b0_new] -> (memref<1x1x8x8xbf16, 2>) {
              %alloc = memref.alloc() : memref<1x1x8x8xbf16, 2>
              air.execute_terminator %alloc : memref<1x1x8x8xbf16, 2>
            } {unrolled_iteration = 0 : i32}
            %steps:4 = scf.for %d = %c0 to %c32 step %c16 iter_args(%ping = %l1_a0_new, %pong = %l1_a0_new, %back = %l1_a0_new, %front = %l1_a0_new) -> (!air.async.token, !air.async.token, !air.async.token, !air.async.token) {
              %in_a0 = affine.if #row0()[%hx, %hy] -> !air.async.token {
                %one = air.channel.get async [%front, %ping] @gemm_folded_2_0[%hx, %hy] (%l1_a0[] [] []) {id = 16 : i32, unrolled_iteration = 0 : i32} : (memref<1x1x8x8xbf16, 2>)
                affine.yield %one : !air.async.token
              } else {
                %one = air.channel.get async [%front, %ping] @gemm_folded_2_1[%hx, %hy] (%l1_a0[] [] []) {id = 17 : i32, unrolled_iteration = 0 : i32} : (memref<1x1x8x8xbf16, 2>)
                affine.yield %one : !air.async.token
              }
              %in_b0 = affine.if #col0()[%hx, %hy] -> !air.async.token {
                %one = air.channel.get async [%front, %ping] @gemm_folded_3_0[%hx, %hy] (%l1_b0[] [] []) {id = 18 : i32, unrolled_iteration = 0 : i32} : (memref<1x1x8x8xbf16, 2>)
                affine.yield %one : !air.async.token
              } else {
                %one = air.channel.get async [%front, %ping] @gemm_folded_3_1[%hx, %hy] (%l1_b0[] [] []) {id = 19 : i32, unrolled_iteration = 0 : i32} : (memref<1x1x8x8xbf16, 2>)
                affine.yield %one : !air.async.token
              }
              %in0 = air.wait_all async [%in_a0, %in_b0]
              %filled0 = air.wait_all async [%back, %in0] {unrolled_iteration = 0 : i32}
              %added0_t0, %added0_c = air.execute [%filled0] -> (vector<8x8xf32>) {
                %v = vector.transfer_read %acc_1[%hx, %hy, %c0, %c0, %c0, %c0], %none {in_bounds = [true, true]} : memref<2x2x1x1x8x8xf32, 2>, vector<8x8xf32>
                air.execute_terminator %v : vector<8x8xf32>
              } {unrolled_iteration = 0 : i32}
              %added0_ta, %added0_a = air.execute [%filled0] -> (vector<8x8xbf16>) {
                %v = vector.transfer_read %l1_a0[%c0, %c0, %c0, %c0], %pad {in_bounds = [true, true]} : memref<1x1x8x8xbf16, 2>, vector<8x8xbf16>
                air.execute_terminator %v : vector<8x8xbf16>
              } {unrolled_iteration = 0 : i32}
              %added0_tb, %added0_b = air.execute [%filled0] -> (vector<8x8xbf16>) {
                %v = vector.transfer_read %l1_b0[%c0, %c0, %c0, %c0], %pad {in_bounds = [true, true]} : memref<1x1x8x8xbf16, 2>, vector<8x8xbf16>
                air.execute_terminator %v : vector<8x8xbf16>
              } {unrolled_iteration = 0 : i32}
              %added0_m = vector.contract {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"], kind = #vector.kind<add>} %added0_a, %added0_b, %added0_c : vector<8x8xbf16>, vector<8x8xbf16> into vector<8x8xf32>
              %added0 = air.execute [%added0_t0, %added0_ta, %added0_tb] {
                vector.transfer_write %added0_m, %acc_1[%hx, %hy, %c0, %c0, %c0, %c0] {in_bounds = [true, true]} : vector<8x8xf32>, memref<2x2x1x1x8x8xf32, 2>
              } {unrolled_iteration = 0 : i32}
              %in_a1 = affine.if #row0()[%hx, %hy] -> !air.async.token {
                %one = air.channel.get async [%in0, %pong] @gemm_folded_2_0[%hx, %hy] (%l1_a1[] [] []) {id = 20 : i32, unrolled_iteration = 1 : i32} : (memref<1x1x8x8xbf16, 2>)
                affine.yield %one : !air.async.token
              } else {
                %one = air.channel.get async [%in0, %pong] @gemm_folded_2_1[%hx, %hy] (%l1_a1[] [] []) {id = 21 : i32, unrolled_iteration = 1 : i32} : (memref<1x1x8x8xbf16, 2>)
                affine.yield %one : !air.async.token
              }
              %in_b1 = affine.if #col0()[%hx, %hy] -> !air.async.token {
                %one = air.channel.get async [%in0, %pong] @gemm_folded_3_0[%hx, %hy] (%l1_b1[] [] []) {id = 22 : i32, unrolled_iteration = 1 : i32} : (memref<1x1x8x8xbf16, 2>)
                affine.yield %one : !air.async.token
              } else {
                %one = air.channel.get async [%in0, %pong] @gemm_folded_3_1[%hx, %hy] (%l1_b1[] [] []) {id = 23 : i32, unrolled_iteration = 1 : i32} : (memref<1x1x8x8xbf16, 2>)
                affine.yield %one : !air.async.token
              }
              %in1 = air.wait_all async [%in_a1, %in_b1]
              %filled1 = air.wait_all async [%added0, %in1] {unrolled_iteration = 1 : i32}
              %added1_t0, %added1_c = air.execute [%filled1] -> (vector<8x8xf32>) {
                %v = vector.transfer_read %acc_1[%hx, %hy, %c0, %c0, %c0, %c0], %none {in_bounds = [true, true]} : memref<2x2x1x1x8x8xf32, 2>, vector<8x8xf32>
                air.execute_terminator %v : vector<8x8xf32>
              } {unrolled_iteration = 1 : i32}
              %added1_ta, %added1_a = air.execute [%filled1] -> (vector<8x8xbf16>) {
                %v = vector.transfer_read %l1_a1[%c0, %c0, %c0, %c0], %pad {in_bounds = [true, true]} : memref<1x1x8x8xbf16, 2>, vector<8x8xbf16>
                air.execute_terminator %v : vector<8x8xbf16>
              } {unrolled_iteration = 1 : i32}
              %added1_tb, %added1_b = air.execute [%filled1] -> (vector<8x8xbf16>) {
                %v = vector.transfer_read %l1_b1[%c0, %c0, %c0, %c0], %pad {in_bounds = [true, true]} : memref<1x1x8x8xbf16, 2>, vector<8x8xbf16>
                air.execute_terminator %v : vector<8x8xbf16>
              } {unrolled_iteration = 1 : i32}
              %added1_m = vector.contract {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"], kind = #vector.kind<add>} %added1_a, %added1_b, %added1_c : vector<8x8xbf16>, vector<8x8xbf16> into vector<8x8xf32>
              %added1 = air.execute [%added1_t0, %added1_ta, %added1_tb] {
                vector.transfer_write %added1_m, %acc_1[%hx, %hy, %c0, %c0, %c0, %c0] {in_bounds = [true, true]} : vector<8x8xf32>, memref<2x2x1x1x8x8xf32, 2>
              } {unrolled_iteration = 1 : i32}
              scf.yield %added0, %added1, %added1, %in1 : !air.async.token, !air.async.token, !air.async.token, !air.async.token
            } {unroll = 2 : i32}
            %stepped = air.wait_all async [%steps#0, %steps#1, %steps#2, %steps#3]
            %free_a0 = air.execute [%stepped] {
              memref.dealloc %l1_a0 : memref<1x1x8x8xbf16, 2>
            } {unrolled_iteration = 0 : i32}
            %free_b0 = air.execute [%stepped] {
              memref.dealloc %l1_b0 : memref<1x1x8x8xbf16, 2>
            } {unrolled_iteration = 0 : i32}
            %free_a1 = air.execute [%stepped] {
              memref.dealloc %l1_a1 : memref<1x1x8x8xbf16, 2>
            } {unrolled_iteration = 1 : i32}
            %free_b1 = air.execute [%stepped] {
              memref.dealloc %l1_b1 : memref<1x1x8x8xbf16, 2>
            } {unrolled_iteration = 1 : i32}
            %freed = air.wait_all async [%free_a0, %free_b0, %free_a1, %free_b1]
            scf.yield %freed : !air.async.token
          }
        }
        %collected = scf.parallel (%px, %py) = (%c0, %c0) to (%c2, %c2) step (%c1, %c1) init (%l2_c_new) -> !air.async.token {
          %m_known, %m = air.execute -> (index) {
            %pos = affine.apply #by8()[%px]
            air.execute_terminator %pos : index
          }
          %n_known, %n = air.execute -> (index) {
            %pos = affine.apply #by8()[%py]
            air.execute_terminator %pos : index
          }
          %one = air.channel.get async [%l2_c_new, %m_known, %n_known] @gemm_folded_4[%px, %py] (%l2_c[%m, %n] [%c8, %c8] [%c16, %c1]) {id = 24 : i32} : (memref<16x16xbf16, 1>)
          scf.reduce(%one : !air.async.token) {
          ^bb0(%left: !air.async.token, %right: !air.async.token):
            %both = air.wait_all async [%left, %right]
            scf.reduce.return %both : !air.async.token
          }
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
          %stored = air.channel.put async [%written] @gemm_folded_4[%hx, %hy] (%rounded[%c0, %c0, %c0] [%c8, %c1, %c8] [%c8, %c64, %c1]) {id = 25 : i32} : (memref<1x1x8x8xbf16, 2>)
          %free_rounded = air.execute [%stored] {
            memref.dealloc %rounded : memref<1x1x8x8xbf16, 2>
          } {id = 5 : i32}
        }
        %l2_out = air.channel.put async [%collected] @gemm_folded_5[] (%l2_c[] [] []) {id = 26 : i32} : (memref<16x16xbf16, 1>)
        %free_l2_c = air.execute [%l2_out] {
          memref.dealloc %l2_c : memref<16x16xbf16, 1>
        }
        %free_acc = air.execute [%drained] {
          memref.dealloc %acc : memref<2x2x1x1x8x8xf32, 2>
        }
      }
    }
    return
  }
}
