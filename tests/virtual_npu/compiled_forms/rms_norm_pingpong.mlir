// rms_norm, rows=32 cols=32 eps=0.25 herd_x=2, after air-ping-pong-transform: rows and results are doubled,
// the weight, which the loop only reads, is not. The weight comes by broadcast.
#row = affine_map<()[s0, s1] -> (s0 * 16 + s1)>
#all = affine_set<()[s0, s1] : (s0 >= 0, -s0 + 1 >= 0, s1 == 0)>
module {
  air.channel @rms_norm_pingpong_0 [1, 1] {broadcast_shape = [2, 1]}
  air.channel @rms_norm_pingpong_1 [2, 1]
  air.channel @rms_norm_pingpong_2 [2, 1]
  func.func @rms_norm_pingpong(%x: memref<32x32xbf16>, %weight: memref<32xbf16>, %out: memref<32x32xbf16>) {
    %launched = air.launch async () in () args(%weight_1=%weight, %x_1=%x, %out_1=%out) : memref<32xbf16>, memref<32x32xbf16>, memref<32x32xbf16> attributes {id = 1 : i32} {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c2 = arith.constant 2 : index
      %c8 = arith.constant 8 : index
      %c16 = arith.constant 16 : index
      %c32 = arith.constant 32 : index
      %begin = air.wait_all async
      %weight_out = air.channel.put async [%begin] @rms_norm_pingpong_0[] (%weight_1[] [] []) {id = 1 : i32} : (memref<32xbf16>)
      %x_out = scf.parallel (%px, %py) = (%c0, %c0) to (%c2, %c1) step (%c1, %c1) init (%begin) -> !air.async.token {
        %x_out_groups = scf.for %i = %c0 to %c16 step %c8 iter_args(%group = %begin) -> (!air.async.token) {
          %x_out_t, %x_out_at = air.execute [%group] -> (index) {
            %at = affine.apply #row()[%px, %i]
            air.execute_terminator %at : index
          }
          %x_out_one = air.channel.put async [%x_out_t] @rms_norm_pingpong_1[%px, %py] (%x_1[%x_out_at, %c0] [%c8, %c32] [%c32, %c1]) {id = 2 : i32} : (memref<32x32xbf16>)
          scf.yield %x_out_one : !air.async.token
        }
        scf.reduce(%x_out_groups : !air.async.token) {
        ^bb0(%left: !air.async.token, %right: !air.async.token):
          %both = air.wait_all async [%left, %right]
          scf.reduce.return %both : !air.async.token
        }
      }
      %result_in = scf.parallel (%px, %py) = (%c0, %c0) to (%c2, %c1) step (%c1, %c1) init (%begin) -> !air.async.token {
        %result_in_groups = scf.for %i = %c0 to %c16 step %c8 iter_args(%group = %begin) -> (!air.async.token) {
          %result_in_t, %result_in_at = air.execute [%group] -> (index) {
            %at = affine.apply #row()[%px, %i]
            air.execute_terminator %at : index
          }
          %result_in_one = air.channel.get async [%result_in_t] @rms_norm_pingpong_2[%px, %py] (%out_1[%result_in_at, %c0] [%c8, %c32] [%c32, %c1]) {id = 3 : i32} : (memref<32x32xbf16>)
          scf.yield %result_in_one : !air.async.token
        }
        scf.reduce(%result_in_groups : !air.async.token) {
        ^bb0(%left: !air.async.token, %right: !air.async.token):
          %both = air.wait_all async [%left, %right]
          scf.reduce.return %both : !air.async.token
        }
      }
      %segment = air.segment @rms_norm_segment async attributes {id = 2 : i32} {
        %c1 = arith.constant 1 : index
        %c2 = arith.constant 2 : index
        %herd = air.herd @rms_norm_herd async tile (%hx, %hy) in (%nx=%c2, %ny=%c1) attributes {id = 3 : i32} {
          %c0 = arith.constant 0 : index
          %c1 = arith.constant 1 : index
          %c8 = arith.constant 8 : index
          %c16 = arith.constant 16 : index
          %c32 = arith.constant 32 : index
          %none = arith.constant dense<0.000000e+00> : vector<16xf32>
          %pad = arith.constant 0.000000e+00 : bf16
          %share = arith.constant 3.125000e-02 : f32
          %eps = arith.constant 2.500000e-01 : f32
          %l1_weight_new, %l1_weight = air.execute -> (memref<32xbf16, 2>) {
            %alloc = memref.alloc() : memref<32xbf16, 2>
            air.execute_terminator %alloc : memref<32xbf16, 2>
          }
          %in_weight = affine.if #all()[%hx, %hy] -> !air.async.token {
            %whole = air.channel.get async [%l1_weight_new] @rms_norm_pingpong_0[%hx, %hy] (%l1_weight[] [] []) {id = 4 : i32} : (memref<32xbf16, 2>)
            affine.yield %whole : !air.async.token
          } else {
            %whole = air.wait_all async [%l1_weight_new]
            affine.yield %whole : !air.async.token
          }
          %l1_out1_new, %l1_out1 = air.execute [%in_weight] -> (memref<8x32xbf16, 2>) {
            %alloc = memref.alloc() : memref<8x32xbf16, 2>
            air.execute_terminator %alloc : memref<8x32xbf16, 2>
          } {unrolled_iteration = 1 : i32}
          %l1_x1_new, %l1_x1 = air.execute [%l1_out1_new] -> (memref<8x32xbf16, 2>) {
            %alloc = memref.alloc() : memref<8x32xbf16, 2>
            air.execute_terminator %alloc : memref<8x32xbf16, 2>
          } {unrolled_iteration = 1 : i32}
          %l1_out0_new, %l1_out0 = air.execute [%l1_x1_new] -> (memref<8x32xbf16, 2>) {
            %alloc = memref.alloc() : memref<8x32xbf16, 2>
            air.execute_terminator %alloc : memref<8x32xbf16, 2>
          } {unrolled_iteration = 0 : i32}
          %l1_x0_new, %l1_x0 = air.execute [%l1_out0_new] -> (memref<8x32xbf16, 2>) {
            %alloc = memref.alloc() : memref<8x32xbf16, 2>
            air.execute_terminator %alloc : memref<8x32xbf16, 2>
          } {unrolled_iteration = 0 : i32}
          %groups:4 = scf.for %i = %c0 to %c16 step %c16 iter_args(%ping = %l1_x0_new, %pong = %l1_x0_new, %back = %l1_x0_new, %front = %l1_x0_new) -> (!air.async.token, !air.async.token, !air.async.token, !air.async.token) {
            %in0 = air.channel.get async [%front, %ping] @rms_norm_pingpong_1[%hx, %hy] (%l1_x0[] [] []) {id = 5 : i32, unrolled_iteration = 0 : i32} : (memref<8x32xbf16, 2>)
            %filled0 = air.wait_all async [%back, %in0] {unrolled_iteration = 0 : i32}
            %rows0 = scf.for %row = %c0 to %c8 step %c1 iter_args(%chain = %filled0) -> (!air.async.token) {
              %rows0_sum:2 = scf.for %j = %c0 to %c32 step %c16 iter_args(%total = %none, %link = %chain) -> (vector<16xf32>, !air.async.token) {
                %rows0_t0, %rows0_v0 = air.execute [%link] -> (vector<16xbf16>) {
                  %v = vector.transfer_read %l1_x0[%row, %j], %pad {in_bounds = [true]} : memref<8x32xbf16, 2>, vector<16xbf16>
                  air.execute_terminator %v : vector<16xbf16>
                }
                %rows0_wide = arith.extf %rows0_v0 : vector<16xbf16> to vector<16xf32>
                %rows0_more = vector.fma %rows0_wide, %rows0_wide, %total : vector<16xf32>
                scf.yield %rows0_more, %rows0_t0 : vector<16xf32>, !air.async.token
              }
              %rows0_all = vector.reduction <add>, %rows0_sum#0 : vector<16xf32> into f32
              %rows0_mean = arith.mulf %rows0_all, %share : f32
              %rows0_safe = arith.addf %rows0_mean, %eps : f32
              %rows0_inv = math.rsqrt %rows0_safe : f32
              %rows0_scale = vector.broadcast %rows0_inv : f32 to vector<16xf32>
              %rows0_lanes = scf.for %j = %c0 to %c32 step %c16 iter_args(%link = %rows0_sum#1) -> (!air.async.token) {
                %rows0_t1, %rows0_v1 = air.execute [%link] -> (vector<16xbf16>) {
                  %v = vector.transfer_read %l1_x0[%row, %j], %pad {in_bounds = [true]} : memref<8x32xbf16, 2>, vector<16xbf16>
                  air.execute_terminator %v : vector<16xbf16>
                }
                %rows0_x = arith.extf %rows0_v1 : vector<16xbf16> to vector<16xf32>
                %rows0_scaled = arith.mulf %rows0_x, %rows0_scale : vector<16xf32>
                %rows0_once = arith.truncf %rows0_scaled : vector<16xf32> to vector<16xbf16>
                %rows0_y = arith.extf %rows0_once : vector<16xbf16> to vector<16xf32>
                %rows0_t2, %rows0_v2 = air.execute [%link] -> (vector<16xbf16>) {
                  %v = vector.transfer_read %l1_weight[%j], %pad {in_bounds = [true]} : memref<32xbf16, 2>, vector<16xbf16>
                  air.execute_terminator %v : vector<16xbf16>
                }
                %rows0_g = arith.extf %rows0_v2 : vector<16xbf16> to vector<16xf32>
                %rows0_prod = arith.mulf %rows0_y, %rows0_g : vector<16xf32>
                %rows0_twice = arith.truncf %rows0_prod : vector<16xf32> to vector<16xbf16>
                %rows0_t3 = air.execute [%rows0_t1, %rows0_t2] {
                  vector.transfer_write %rows0_twice, %l1_out0[%row, %j] {in_bounds = [true]} : vector<16xbf16>, memref<8x32xbf16, 2>
                }
                scf.yield %rows0_t3 : !air.async.token
              }
              scf.yield %rows0_lanes : !air.async.token
            } {unrolled_iteration = 0 : i32}
            %stored0 = air.channel.put async [%rows0] @rms_norm_pingpong_2[%hx, %hy] (%l1_out0[] [] []) {id = 6 : i32, unrolled_iteration = 0 : i32} : (memref<8x32xbf16, 2>)
            %in1 = air.channel.get async [%in0, %pong] @rms_norm_pingpong_1[%hx, %hy] (%l1_x1[] [] []) {id = 7 : i32, unrolled_iteration = 1 : i32} : (memref<8x32xbf16, 2>)
            %filled1 = air.wait_all async [%stored0, %in1] {unrolled_iteration = 1 : i32}
            %rows1 = scf.for %row = %c0 to %c8 step %c1 iter_args(%chain = %filled1) -> (!air.async.token) {
              %rows1_sum:2 = scf.for %j = %c0 to %c32 step %c16 iter_args(%total = %none, %link = %chain) -> (vector<16xf32>, !air.async.token) {
                %rows1_t0, %rows1_v0 = air.execute [%link] -> (vector<16xbf16>) {
                  %v = vector.transfer_read %l1_x1[%row, %j], %pad {in_bounds = [true]} : memref<8x32xbf16, 2>, vector<16xbf16>
                  air.execute_terminator %v : vector<16xbf16>
                }
                %rows1_wide = arith.extf %rows1_v0 : vector<16xbf16> to vector<16xf32>
                %rows1_more = vector.fma %rows1_wide, %rows1_wide, %total : vector<16xf32>
                scf.yield %rows1_more, %rows1_t0 : vector<16xf32>, !air.async.token
              }
              %rows1_all = vector.reduction <add>, %rows1_sum#0 : vector<16xf32> into f32
              %rows1_mean = arith.mulf %rows1_all, %share : f32
              %rows1_safe = arith.addf %rows1_mean, %eps : f32
              %rows1_inv = math.rsqrt %rows1_safe : f32
              %rows1_scale = vector.broadcast %rows1_inv : f32 to vector<16xf32>
              %rows1_lanes = scf.for %j = %c0 to %c32 step %c16 iter_args(%link = %rows1_sum#1) -> (!air.async.token) {
                %rows1_t1, %rows1_v1 = air.execute [%link] -> (vector<16xbf16>) {
                  %v = vector.transfer_read %l1_x1[%row, %j], %pad {in_bounds = [true]} : memref<8x32xbf16, 2>, vector<16xbf16>
                  air.execute_terminator %v : vector<16xbf16>
                }
                %rows1_x = arith.extf %rows1_v1 : vector<16xbf16> to vector<16xf32>
                %rows1_scaled = arith.mulf %rows1_x, %rows1_scale : vector<16xf32>
                %rows1_once = arith.truncf %rows1_scaled : vector<16xf32> to vector<16xbf16>
                %rows1_y = arith.extf %rows1_once : vector<16xbf16> to vector<16xf32>
                %rows1_t2, %rows1_v2 = air.execute [%link] -> (vector<16xbf16>) {
                  %v = vector.transfer_read %l1_weight[%j], %pad {in_bounds = [true]} : memref<32xbf16, 2>, vector<16xbf16>
                  air.execute_terminator %v : vector<16xbf16>
                }
                %rows1_g = arith.extf %rows1_v2 : vector<16xbf16> to vector<16xf32>
                %rows1_prod = arith.mulf %rows1_y, %rows1_g : vector<16xf32>
                %rows1_twice = arith.truncf %rows1_prod : vector<16xf32> to vector<16xbf16>
                %rows1_t3 = air.execute [%rows1_t1, %rows1_t2] {
                  vector.transfer_write %rows1_twice, %l1_out1[%row, %j] {in_bounds = [true]} : vector<16xbf16>, memref<8x32xbf16, 2>
                }
                scf.yield %rows1_t3 : !air.async.token
              }
              scf.yield %rows1_lanes : !air.async.token
            } {unrolled_iteration = 1 : i32}
            %stored1 = air.channel.put async [%rows1] @rms_norm_pingpong_2[%hx, %hy] (%l1_out1[] [] []) {id = 8 : i32, unrolled_iteration = 1 : i32} : (memref<8x32xbf16, 2>)
            scf.yield %stored0, %stored1, %stored1, %in1 : !air.async.token, !air.async.token, !air.async.token, !air.async.token
          } {unroll = 2 : i32}
          %end = air.wait_all async [%groups#0, %groups#1, %groups#2, %groups#3]
          %free_x0 = air.execute [%end] {
            memref.dealloc %l1_x0 : memref<8x32xbf16, 2>
          } {unrolled_iteration = 0 : i32}
          %free_out0 = air.execute [%end] {
            memref.dealloc %l1_out0 : memref<8x32xbf16, 2>
          } {unrolled_iteration = 0 : i32}
          %free_x1 = air.execute [%end] {
            memref.dealloc %l1_x1 : memref<8x32xbf16, 2>
          } {unrolled_iteration = 1 : i32}
          %free_out1 = air.execute [%end] {
            memref.dealloc %l1_out1 : memref<8x32xbf16, 2>
          } {unrolled_iteration = 1 : i32}
          %free_weight = air.execute [%end] {
            memref.dealloc %l1_weight : memref<32xbf16, 2>
          }
        }
      }
    }
    return
  }
}
