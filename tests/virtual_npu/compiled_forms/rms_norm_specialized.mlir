// rms_norm, rows=32 cols=32 eps=0.25 herd_x=2, after air-broadcast-detection and air-specialize-dma-
// broadcast: every tile wants the same weight, so its DMA stands in an affine.if over the set of tiles it
// goes to.
#row = affine_map<()[s0, s1] -> (s0 * 16 + s1)>
#all = affine_set<()[s0, s1] : (s0 >= 0, -s0 + 1 >= 0, s1 == 0)>
module {
  func.func @rms_norm_specialized(%x: memref<32x32xbf16>, %weight: memref<32xbf16>, %out: memref<32x32xbf16>) {
    %launched = air.launch async () in () args(%weight_1=%weight, %x_1=%x, %out_1=%out) : memref<32xbf16>, memref<32x32xbf16>, memref<32x32xbf16> attributes {id = 1 : i32} {
      %segment = air.segment @rms_norm_segment async args(%weight_2=%weight_1, %x_2=%x_1, %out_2=%out_1) : memref<32xbf16>, memref<32x32xbf16>, memref<32x32xbf16> attributes {id = 2 : i32} {
        %c1 = arith.constant 1 : index
        %c2 = arith.constant 2 : index
        %herd = air.herd @rms_norm_herd async tile (%hx, %hy) in (%nx=%c2, %ny=%c1) args(%weight_3=%weight_2, %x_3=%x_2, %out_3=%out_2) : memref<32xbf16>, memref<32x32xbf16>, memref<32x32xbf16> attributes {id = 3 : i32} {
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
          } {id = 1 : i32}
          %l1_x_new, %l1_x = air.execute -> (memref<8x32xbf16, 2>) {
            %alloc = memref.alloc() : memref<8x32xbf16, 2>
            air.execute_terminator %alloc : memref<8x32xbf16, 2>
          } {id = 2 : i32}
          %l1_out_new, %l1_out = air.execute -> (memref<8x32xbf16, 2>) {
            %alloc = memref.alloc() : memref<8x32xbf16, 2>
            air.execute_terminator %alloc : memref<8x32xbf16, 2>
          } {id = 3 : i32}
          %in_weight = affine.if #all()[%hx, %hy] -> !air.async.token {
            %whole = air.dma_memcpy_nd async [%l1_weight_new] (%l1_weight[] [] [], %weight_3[] [] []) {broadcast_set = #all, id = 1 : i32} : (memref<32xbf16, 2>, memref<32xbf16>)
            affine.yield %whole : !air.async.token
          } else {
            %whole = air.wait_all async [%l1_weight_new]
            affine.yield %whole : !air.async.token
          }
          %ready = air.wait_all async [%in_weight, %l1_x_new, %l1_out_new] {id = 1 : i32}
          %groups = scf.for %i = %c0 to %c16 step %c8 iter_args(%group = %ready) -> (!air.async.token) {
            %at = affine.apply #row()[%hx, %i]
            %in_x = air.dma_memcpy_nd async [%group] (%l1_x[] [] [], %x_3[%at, %c0] [%c8, %c32] [%c32, %c1]) {id = 2 : i32} : (memref<8x32xbf16, 2>, memref<32x32xbf16>)
            %filled = air.wait_all async [%group, %in_x] {id = 2 : i32}
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
            %stored = air.dma_memcpy_nd async [%rows] (%out_3[%at, %c0] [%c8, %c32] [%c32, %c1], %l1_out[] [] []) {id = 3 : i32} : (memref<32x32xbf16>, memref<8x32xbf16, 2>)
            %done = air.wait_all async [%in_x, %rows, %stored] {id = 3 : i32}
            scf.yield %done : !air.async.token
          }
          %free_weight = air.execute [%groups] {
            memref.dealloc %l1_weight : memref<32xbf16, 2>
          } {id = 4 : i32}
          %free_x = air.execute [%groups] {
            memref.dealloc %l1_x : memref<8x32xbf16, 2>
          } {id = 5 : i32}
          %free_out = air.execute [%groups] {
            memref.dealloc %l1_out : memref<8x32xbf16, 2>
          } {id = 6 : i32}
        }
      }
    }
    return
  }
}
