// gemm, m=32 k=64 n=16, tiles 8x8 of K 32 in L2 and 8 in L1, herd 2x2, after air-dma-to-channel without
// broadcast: a and b come to L2 and go on to every tile by a channel of its own, fed by a parallel loop in
// the segment's K loop. The get of c stands first in the launch.
#by16 = affine_map<()[s0] -> (s0 * 16)>
#by8 = affine_map<()[s0] -> (s0 * 8)>
#mk = affine_map<(d0, d1, d2) -> (d0, d2)>
#kn = affine_map<(d0, d1, d2) -> (d2, d1)>
#mn = affine_map<(d0, d1, d2) -> (d0, d1)>
module {
  air.channel @gemm_channels_0 [1, 1]
  air.channel @gemm_channels_1 [1, 1]
  air.channel @gemm_channels_2 [2, 2]
  air.channel @gemm_channels_3 [2, 2]
  air.channel @gemm_channels_4 [2, 2]
  air.channel @gemm_channels_5 [1, 1]
  func.func @gemm_channels(%a: memref<32x64xbf16>, %b: memref<64x16xbf16>, %c: memref<32x16xbf16>) {
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
      %c_in = air.channel.get async [%rows_known, %cols_known] @gemm_channels_5[] (%c_1[%rows, %cols] [%c16, %c16] [%c16, %c1]) {id = 1 : i32} : (memref<32x16xbf16>)
      %a_out = scf.for %k = %c0 to %c64 step %c32 iter_args(%k_before = %placed) -> (!air.async.token) {
        %one = air.channel.put async [%k_before] @gemm_channels_0[] (%a_1[%rows, %k] [%c16, %c32] [%c64, %c1]) {id = 2 : i32} : (memref<32x64xbf16>)
        scf.yield %one : !air.async.token
      }
      %b_out = scf.for %k = %c0 to %c64 step %c32 iter_args(%k_before = %placed) -> (!air.async.token) {
        %one = air.channel.put async [%k_before] @gemm_channels_1[] (%b_1[%k, %cols] [%c32, %c16] [%c16, %c1]) {id = 3 : i32} : (memref<64x16xbf16>)
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
        %l2_a_new, %l2_a = air.execute -> (memref<16x32xbf16, 1>) {
          %alloc = memref.alloc() : memref<16x32xbf16, 1>
          air.execute_terminator %alloc : memref<16x32xbf16, 1>
        }
        %l2_b_new, %l2_b = air.execute -> (memref<32x16xbf16, 1>) {
          %alloc = memref.alloc() : memref<32x16xbf16, 1>
          air.execute_terminator %alloc : memref<32x16xbf16, 1>
        }
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
        %begun = air.wait_all async [%l2_a_new, %l2_b_new, %cleared]
        %deep = scf.for %k = %c0 to %c64 step %c32 iter_args(%before = %begun) -> (!air.async.token) {
          %l2_in_a = air.channel.get async [%before] @gemm_channels_0[] (%l2_a[] [] []) {id = 4 : i32} : (memref<16x32xbf16, 1>)
          %l2_in_b = air.channel.get async [%before] @gemm_channels_1[] (%l2_b[] [] []) {id = 5 : i32} : (memref<32x16xbf16, 1>)
          %a_fed = scf.parallel (%px, %py) = (%c0, %c0) to (%c2, %c2) step (%c1, %c1) init (%l2_in_a) -> !air.async.token {
            %a_fed_t, %a_fed_at = air.execute [%l2_in_a] -> (index) {
              %pos = affine.apply #by8()[%px]
              air.execute_terminator %pos : index
            }
            %a_fed_steps = scf.for %d = %c0 to %c32 step %c8 iter_args(%step = %a_fed_t) -> (!air.async.token) {
              %a_fed_one = air.channel.put async [%step] @gemm_channels_2[%px, %py] (%l2_a[%c0, %c0, %a_fed_at, %d] [%c1, %c1, %c8, %c8] [%c8, %c256, %c32, %c1]) {id = 6 : i32} : (memref<16x32xbf16, 1>)
              scf.yield %a_fed_one : !air.async.token
            }
            scf.reduce(%a_fed_steps : !air.async.token) {
            ^bb0(%left: !air.async.token, %right: !air.async.token):
              %both = air.wait_all async [%left, %right]
              scf.reduce.return %both : !air.async.token
            }
          }
          %b_fed = scf.parallel (%px, %py) = (%c0, %c0) to (%c2, %c2) step (%c1, %c1) init (%l2_in_b) -> !air.async.token {
            %b_fed_t, %b_fed_at = air.execute [%l2_in_b] -> (index) {
              %pos = affine.apply #by8()[%py]
              air.execute_terminator %pos : index
            }
            %b_fed_steps = scf.for %d = %c0 to %c32 step %c8 iter_args(%step = %b_fed_t) -> (!air.async.token) {
              %b_fed_one = air.channel.put async [%step] @gemm_channels_3[%px, %py] (%l2_b[%c0, %c0, %d, %b_fed_at] [%c1, %c1, %c8, %c8] [%c8, %c128, %c16, %c1]) {id = 7 : i32} : (memref<32x16xbf16, 1>)
              scf.yield %b_fed_one : !air.async.token
            }
            scf.reduce(%b_fed_steps : !air.async.token) {
            ^bb0(%left: !air.async.token, %right: !air.async.token):
              %both = air.wait_all async [%left, %right]
              scf.reduce.return %both : !air.async.token
            }
          }
          %multiplied = air.herd @gemm_herd async [%before, %l2_in_a, %l2_in_b] tile (%hx, %hy) in (%nx=%c2, %ny=%c2) args(%acc_1=%acc) : memref<2x2x1x1x8x8xf32, 2> attributes {id = 4 : i32} {
            %c0 = arith.constant 0 : index
            %c8 = arith.constant 8 : index
            %c32 = arith.constant 32 : index
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
            %steps = scf.for %d = %c0 to %c32 step %c8 iter_args(%step = %ready) -> (!air.async.token) {
              %in_a = air.channel.get async [%step] @gemm_channels_2[%hx, %hy] (%l1_a[] [] []) {id = 8 : i32} : (memref<1x1x8x8xbf16, 2>)
              %in_b = air.channel.get async [%step] @gemm_channels_3[%hx, %hy] (%l1_b[] [] []) {id = 9 : i32} : (memref<1x1x8x8xbf16, 2>)
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
            %free_a = air.execute [%steps] {
              memref.dealloc %l1_a : memref<1x1x8x8xbf16, 2>
            }
            %free_b = air.execute [%steps] {
              memref.dealloc %l1_b : memref<1x1x8x8xbf16, 2>
            }
          }
          %after = air.wait_all async [%l2_in_a, %l2_in_b, %a_fed, %b_fed, %multiplied]
          scf.yield %after : !air.async.token
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
          %one = air.channel.get async [%l2_c_new, %m_known, %n_known] @gemm_channels_4[%px, %py] (%l2_c[%m, %n] [%c8, %c8] [%c16, %c1]) {id = 10 : i32} : (memref<16x16xbf16, 1>)
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
          %stored = air.channel.put async [%written] @gemm_channels_4[%hx, %hy] (%rounded[%c0, %c0, %c0] [%c8, %c1, %c8] [%c8, %c64, %c1]) {id = 11 : i32} : (memref<1x1x8x8xbf16, 2>)
          %free_rounded = air.execute [%stored] {
            memref.dealloc %rounded : memref<1x1x8x8xbf16, 2>
          } {id = 5 : i32}
        }
        %l2_out = air.channel.put async [%collected] @gemm_channels_5[] (%l2_c[] [] []) {id = 12 : i32} : (memref<16x16xbf16, 1>)
        %free_l2_c = air.execute [%l2_out] {
          memref.dealloc %l2_c : memref<16x16xbf16, 1>
        }
        %free_acc = air.execute [%drained] {
          memref.dealloc %acc : memref<2x2x1x1x8x8xf32, 2>
        }
        %free_l2_a = air.execute [%deep] {
          memref.dealloc %l2_a : memref<16x32xbf16, 1>
        }
        %free_l2_b = air.execute [%deep] {
          memref.dealloc %l2_b : memref<32x16xbf16, 1>
        }
      }
    }
    return
  }
}
