// rms_norm, rows=32 cols=32 eps=0.25 herd_x=2, after air-dma-to-channel without broadcast: each tile has a
// channel of its own for the weight too, and all of them are fed from the same place.
#row = affine_map<()[s0, s1] -> (s0 * 16 + s1)>
module {
  air.channel @rms_norm_channels_0 [2, 1]
  air.channel @rms_norm_channels_1 [2, 1]
  air.channel @rms_norm_channels_2 [2, 1]
  func.func @rms_norm_channels(%x: memref<32x32xbf16>, %weight: memref<32xbf16>, %out: memref<32x32xbf16>) {
    %launched = air.launch async () in () args(%weight_1=%weight, %x_1=%x, %out_1=%out) : memref<32xbf16>, memref<32x32xbf16>, memref<32x32xbf16> attributes {id = 1 : i32} {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c2 = arith.constant 2 : index
      %c8 = arith.constant 8 : index
      %c16 = arith.constant 16 : index
      %c32 = arith.constant 32 : index
      %begin = air.wait_all async
      %weight_out = scf.parallel (%px, %py) = (%c0, %c0) to (%c2, %c1) step (%c1, %c1) init (%begin) -> !air.async.token {
        %weight_one = air.channel.put async [%begin] @rms_norm_channels_0[%px, %py] (%weight_1[] [] []) {id = 1 : i32} : (memref<32xbf16>)
        scf.reduce(%weight_one : !air.async.token) {
        ^bb0(%left: !air.async.token, %right: !air.async.token):
          %both = air.wait_all async [%left, %right]
          scf.reduce.return %both : !air.async.token
        }
      }
      %x_out = scf.parallel (%px, %py) = (%c0, %c0) to (%c2, %c1) step (%c1, %c1) init (%begin) -> !air.async.token {
        %x_out_groups = scf.for %i = %c0 to %c16 step %c8 iter_args(%group = %begin) -> (!air.async.token) {
          %x_out_t, %x_out_at = air.execute [%group] -> (index) {
            %at = affine.apply #row()[%px, %i]
            air.execute_terminator %at : index
          }
          %x_out_one = air.channel.put async [%x_out_t] @rms_norm_channels_1[%px, %py] (%x_1[%x_out_at, %c0] [%c8, %c32] [%c32, %c1]) {id = 2 : i32} : (memref<32x32xbf16>)
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
          %result_in_one = air.channel.get async [%result_in_t] @rms_norm_channels_2[%px, %py] (%out_1[%result_in_at, %c0] [%c8, %c32] [%c32, %c1]) {id = 3 : i32} : (memref<32x32xbf16>)
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
          %l1_x_new, %l1_x = air.execute -> (memref<8x32xbf16, 2>) {
            %alloc = memref.alloc() : memref<8x32xbf16, 2>
            air.execute_terminator %alloc : memref<8x32xbf16, 2>
          }
          %l1_out_new, %l1_out = air.execute -> (memref<8x32xbf16, 2>) {
            %alloc = memref.alloc() : memref<8x32xbf16, 2>
            air.execute_terminator %alloc : memref<8x32xbf16, 2>
          }
          %in_weight = air.channel.get async [%l1_weight_new] @rms_norm_channels_0[%hx, %hy] (%l1_weight[] [] []) {id = 4 : i32} : (memref<32xbf16, 2>)
          %ready = air.wait_all async [%in_weight, %l1_x_new, %l1_out_new]
          %groups = scf.for %i = %c0 to %c16 step %c8 iter_args(%group = %ready) -> (!air.async.token) {
            %in_x = air.channel.get async [%group] @rms_norm_channels_1[%hx, %hy] (%l1_x[] [] []) {id = 5 : i32} : (memref<8x32xbf16, 2>)
            %filled = air.wait_all async [%group, %in_x]
            %rows = scf.for %row = %c0 to %c8 step %c1 iter_args(%chain = %filled) -> (!air.async.token) {
              %rows_sum:2 = scf.for %j = %c0 to %c32 step %c16 iter_args(%total = %none, %link = %chain) -> (vector<16xf32>, !air.async.token) {
                %rows_t0, %rows_v0 = air.execute [%link] -> (vector<16xbf16>) {
                  %v = vector.transfer_read %l1_x[%row, %j], %pad {in_bounds = [true]} : memref<8x32xbf16, 2>, vector<16xbf16>
                  air.execute_terminator %v : vector<16xbf16>
                }
                %rows_wide = arith.extf %rows_v0 : vector<16xbf16> to vector<16xf32>
                %rows_more = vector.fma %rows_wide, %rows_wide, %total : vector<16xf32>
                scf.yield %rows_more, %rows_t0 : vector<16xf32>, !air.async.token
              }
              %rows_all = vector.reduction <add>, %rows_sum#0 : vector<16xf32> into f32
              %rows_mean = arith.mulf %rows_all, %share : f32
              %rows_safe = arith.addf %rows_mean, %eps : f32
              %rows_inv = math.rsqrt %rows_safe : f32
              %rows_scale = vector.broadcast %rows_inv : f32 to vector<16xf32>
              %rows_lanes = scf.for %j = %c0 to %c32 step %c16 iter_args(%link = %rows_sum#1) -> (!air.async.token) {
                %rows_t1, %rows_v1 = air.execute [%link] -> (vector<16xbf16>) {
                  %v = vector.transfer_read %l1_x[%row, %j], %pad {in_bounds = [true]} : memref<8x32xbf16, 2>, vector<16xbf16>
                  air.execute_terminator %v : vector<16xbf16>
                }
                %rows_x = arith.extf %rows_v1 : vector<16xbf16> to vector<16xf32>
                %rows_scaled = arith.mulf %rows_x, %rows_scale : vector<16xf32>
                %rows_once = arith.truncf %rows_scaled : vector<16xf32> to vector<16xbf16>
                %rows_y = arith.extf %rows_once : vector<16xbf16> to vector<16xf32>
                %rows_t2, %rows_v2 = air.execute [%link] -> (vector<16xbf16>) {
                  %v = vector.transfer_read %l1_weight[%j], %pad {in_bounds = [true]} : memref<32xbf16, 2>, vector<16xbf16>
                  air.execute_terminator %v : vector<16xbf16>
                }
                %rows_g = arith.extf %rows_v2 : vector<16xbf16> to vector<16xf32>
                %rows_prod = arith.mulf %rows_y, %rows_g : vector<16xf32>
                %rows_twice = arith.truncf %rows_prod : vector<16xf32> to vector<16xbf16>
                %rows_t3 = air.execute [%rows_t1, %rows_t2] {
                  vector.transfer_write %rows_twice, %l1_out[%row, %j] {in_bounds = [true]} : vector<16xbf16>, memref<8x32xbf16, 2>
                }
                scf.yield %rows_t3 : !air.async.token
              }
              scf.yield %rows_lanes : !air.async.token
            }
            %stored = air.channel.put async [%rows] @rms_norm_channels_2[%hx, %hy] (%l1_out[] [] []) {id = 6 : i32} : (memref<8x32xbf16, 2>)
            %done = air.wait_all async [%in_x, %rows, %stored]
            scf.yield %done : !air.async.token
          }
          %free_weight = air.execute [%groups] {
            memref.dealloc %l1_weight : memref<32xbf16, 2>
          }
          %free_x = air.execute [%groups] {
            memref.dealloc %l1_x : memref<8x32xbf16, 2>
          }
          %free_out = air.execute [%groups] {
            memref.dealloc %l1_out : memref<8x32xbf16, 2>
          }
        }
      }
    }
    return
  }
}
