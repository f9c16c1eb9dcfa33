// eltwise_add, rows=2 cols=8192 herd_x=2, after air-place-herds and air-renumber-dma: the ping-pong form with
// the place of segment and herd. The get of the result is written after the segment here, and waits for the
// launch's begin only.
module {
  air.channel @eltwise_add_placed_0 [2, 1]
  air.channel @eltwise_add_placed_1 [2, 1]
  air.channel @eltwise_add_placed_2 [2, 1]
  func.func @eltwise_add_placed(%a: memref<2x8192xbf16>, %b: memref<2x8192xbf16>, %out: memref<2x8192xbf16>) {
    %launched = air.launch async () in () args(%a_1=%a, %b_1=%b, %out_1=%out) : memref<2x8192xbf16>, memref<2x8192xbf16>, memref<2x8192xbf16> attributes {id = 1 : i32} {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c2 = arith.constant 2 : index
      %c2048 = arith.constant 2048 : index
      %c8192 = arith.constant 8192 : index
      %begin = air.wait_all async
      %a_out = scf.parallel (%px, %py) = (%c0, %c0) to (%c2, %c1) step (%c1, %c1) init (%begin) -> !air.async.token {
        %a_out_runs = scf.for %i = %c0 to %c8192 step %c2048 iter_args(%run = %begin) -> (!air.async.token) {
          %a_out_one = air.channel.put async [%run] @eltwise_add_placed_0[%px, %py] (%a_1[%px, %i] [%c1, %c2048] [%c8192, %c1]) {id = 1 : i32} : (memref<2x8192xbf16>)
          scf.yield %a_out_one : !air.async.token
        }
        scf.reduce(%a_out_runs : !air.async.token) {
        ^bb0(%left: !air.async.token, %right: !air.async.token):
          %both = air.wait_all async [%left, %right]
          scf.reduce.return %both : !air.async.token
        }
      }
      %b_out = scf.parallel (%px, %py) = (%c0, %c0) to (%c2, %c1) step (%c1, %c1) init (%begin) -> !air.async.token {
        %b_out_runs = scf.for %i = %c0 to %c8192 step %c2048 iter_args(%run = %begin) -> (!air.async.token) {
          %b_out_one = air.channel.put async [%run] @eltwise_add_placed_1[%px, %py] (%b_1[%px, %i] [%c1, %c2048] [%c8192, %c1]) {id = 2 : i32} : (memref<2x8192xbf16>)
          scf.yield %b_out_one : !air.async.token
        }
        scf.reduce(%b_out_runs : !air.async.token) {
        ^bb0(%left: !air.async.token, %right: !air.async.token):
          %both = air.wait_all async [%left, %right]
          scf.reduce.return %both : !air.async.token
        }
      }
      %result_in = scf.parallel (%px, %py) = (%c0, %c0) to (%c2, %c1) step (%c1, %c1) init (%begin) -> !air.async.token {
        %result_in_runs = scf.for %i = %c0 to %c8192 step %c2048 iter_args(%run = %begin) -> (!air.async.token) {
          %result_in_one = air.channel.get async [%run] @eltwise_add_placed_2[%px, %py] (%out_1[%px, %i] [%c1, %c2048] [%c8192, %c1]) {id = 3 : i32} : (memref<2x8192xbf16>)
          scf.yield %result_in_one : !air.async.token
        }
        scf.reduce(%result_in_runs : !air.async.token) {
        ^bb0(%left: !air.async.token, %right: !air.async.token):
          %both = air.wait_all async [%left, %right]
          scf.reduce.return %both : !air.async.token
        }
      }
      %segment = air.segment @eltwise_add_segment async attributes {id = 2 : i32, x_loc = 0 : i64, x_size = 8 : i64, y_loc = 2 : i64, y_size = 6 : i64} {
        %c1 = arith.constant 1 : index
        %c2 = arith.constant 2 : index
        %herd = air.herd @eltwise_add_herd async tile (%hx, %hy) in (%nx=%c2, %ny=%c1) attributes {id = 3 : i32, x_loc = 3 : i64, y_loc = 2 : i64} {
          %c0 = arith.constant 0 : index
          %c1 = arith.constant 1 : index
          %c16 = arith.constant 16 : index
          %c2048 = arith.constant 2048 : index
          %c4096 = arith.constant 4096 : index
          %c8192 = arith.constant 8192 : index
          %zero = arith.constant 0.000000e+00 : bf16
          %ready = air.wait_all async
          %l1_out1_new, %l1_out1 = air.execute [%ready] -> (memref<2048xbf16, 2>) {
            %alloc = memref.alloc() : memref<2048xbf16, 2>
            air.execute_terminator %alloc : memref<2048xbf16, 2>
          } {unrolled_iteration = 1 : i32}
          %l1_b1_new, %l1_b1 = air.execute [%l1_out1_new] -> (memref<2048xbf16, 2>) {
            %alloc = memref.alloc() : memref<2048xbf16, 2>
            air.execute_terminator %alloc : memref<2048xbf16, 2>
          } {unrolled_iteration = 1 : i32}
          %l1_a1_new, %l1_a1 = air.execute [%l1_b1_new] -> (memref<2048xbf16, 2>) {
            %alloc = memref.alloc() : memref<2048xbf16, 2>
            air.execute_terminator %alloc : memref<2048xbf16, 2>
          } {unrolled_iteration = 1 : i32}
          %l1_out0_new, %l1_out0 = air.execute [%l1_a1_new] -> (memref<2048xbf16, 2>) {
            %alloc = memref.alloc() : memref<2048xbf16, 2>
            air.execute_terminator %alloc : memref<2048xbf16, 2>
          } {unrolled_iteration = 0 : i32}
          %l1_b0_new, %l1_b0 = air.execute [%l1_out0_new] -> (memref<2048xbf16, 2>) {
            %alloc = memref.alloc() : memref<2048xbf16, 2>
            air.execute_terminator %alloc : memref<2048xbf16, 2>
          } {unrolled_iteration = 0 : i32}
          %l1_a0_new, %l1_a0 = air.execute [%l1_b0_new] -> (memref<2048xbf16, 2>) {
            %alloc = memref.alloc() : memref<2048xbf16, 2>
            air.execute_terminator %alloc : memref<2048xbf16, 2>
          } {unrolled_iteration = 0 : i32}
          %runs:4 = scf.for %i = %c0 to %c8192 step %c4096 iter_args(%ping = %l1_a0_new, %pong = %l1_a0_new, %back = %l1_a0_new, %front = %l1_a0_new) -> (!air.async.token, !air.async.token, !air.async.token, !air.async.token) {
            %in_a0 = air.channel.get async [%front, %ping] @eltwise_add_placed_0[%hx, %hy] (%l1_a0[] [] []) {id = 4 : i32, unrolled_iteration = 0 : i32} : (memref<2048xbf16, 2>)
            %in_b0 = air.channel.get async [%front, %ping] @eltwise_add_placed_1[%hx, %hy] (%l1_b0[] [] []) {id = 5 : i32, unrolled_iteration = 0 : i32} : (memref<2048xbf16, 2>)
            %in0 = air.wait_all async [%in_a0, %in_b0]
            %filled0 = air.wait_all async [%back, %in0] {unrolled_iteration = 0 : i32}
            %sum0 = scf.for %j = %c0 to %c2048 step %c16 iter_args(%chain = %filled0) -> (!air.async.token) {
              %sum0_ra, %sum0_va = air.execute [%chain] -> (vector<16xbf16>) {
                %v = vector.transfer_read %l1_a0[%j], %zero {in_bounds = [true]} : memref<2048xbf16, 2>, vector<16xbf16>
                air.execute_terminator %v : vector<16xbf16>
              } {id = 1 : i32}
              %sum0_rb, %sum0_vb = air.execute [%chain] -> (vector<16xbf16>) {
                %v = vector.transfer_read %l1_b0[%j], %zero {in_bounds = [true]} : memref<2048xbf16, 2>, vector<16xbf16>
                air.execute_terminator %v : vector<16xbf16>
              } {id = 2 : i32}
              %sum0_vs = arith.addf %sum0_va, %sum0_vb : vector<16xbf16>
              %sum0_w = air.execute [%sum0_ra, %sum0_rb] {
                vector.transfer_write %sum0_vs, %l1_out0[%j] {in_bounds = [true]} : vector<16xbf16>, memref<2048xbf16, 2>
              } {id = 3 : i32}
              scf.yield %sum0_w : !air.async.token
            } {unrolled_iteration = 0 : i32}
            %stored0 = air.channel.put async [%sum0] @eltwise_add_placed_2[%hx, %hy] (%l1_out0[] [] []) {id = 6 : i32, unrolled_iteration = 0 : i32} : (memref<2048xbf16, 2>)
            %in_a1 = air.channel.get async [%in0, %pong] @eltwise_add_placed_0[%hx, %hy] (%l1_a1[] [] []) {id = 7 : i32, unrolled_iteration = 1 : i32} : (memref<2048xbf16, 2>)
            %in_b1 = air.channel.get async [%in0, %pong] @eltwise_add_placed_1[%hx, %hy] (%l1_b1[] [] []) {id = 8 : i32, unrolled_iteration = 1 : i32} : (memref<2048xbf16, 2>)
            %in1 = air.wait_all async [%in_a1, %in_b1]
            %filled1 = air.wait_all async [%stored0, %in1] {unrolled_iteration = 1 : i32}
            %sum1 = scf.for %j = %c0 to %c2048 step %c16 iter_args(%chain = %filled1) -> (!air.async.token) {
              %sum1_ra, %sum1_va = air.execute [%chain] -> (vector<16xbf16>) {
                %v = vector.transfer_read %l1_a1[%j], %zero {in_bounds = [true]} : memref<2048xbf16, 2>, vector<16xbf16>
                air.execute_terminator %v : vector<16xbf16>
              } {id = 4 : i32}
              %sum1_rb, %sum1_vb = air.execute [%chain] -> (vector<16xbf16>) {
                %v = vector.transfer_read %l1_b1[%j], %zero {in_bounds = [true]} : memref<2048xbf16, 2>, vector<16xbf16>
                air.execute_terminator %v : vector<16xbf16>
              } {id = 5 : i32}
              %sum1_vs = arith.addf %sum1_va, %sum1_vb : vector<16xbf16>
              %sum1_w = air.execute [%sum1_ra, %sum1_rb] {
                vector.transfer_write %sum1_vs, %l1_out1[%j] {in_bounds = [true]} : vector<16xbf16>, memref<2048xbf16, 2>
              } {id = 6 : i32}
              scf.yield %sum1_w : !air.async.token
            } {unrolled_iteration = 1 : i32}
            %stored1 = air.channel.put async [%sum1] @eltwise_add_placed_2[%hx, %hy] (%l1_out1[] [] []) {id = 9 : i32, unrolled_iteration = 1 : i32} : (memref<2048xbf16, 2>)
            scf.yield %stored0, %stored1, %stored1, %in1 : !air.async.token, !air.async.token, !air.async.token, !air.async.token
          } {unroll = 2 : i32}
          %end = air.wait_all async [%runs#0, %runs#1, %runs#2, %runs#3]
          %free_a0 = air.execute [%end] {
            memref.dealloc %l1_a0 : memref<2048xbf16, 2>
          } {unrolled_iteration = 0 : i32}
          %free_b0 = air.execute [%end] {
            memref.dealloc %l1_b0 : memref<2048xbf16, 2>
          } {unrolled_iteration = 0 : i32}
          %free_out0 = air.execute [%end] {
            memref.dealloc %l1_out0 : memref<2048xbf16, 2>
          } {unrolled_iteration = 0 : i32}
          %free_a1 = air.execute [%end] {
            memref.dealloc %l1_a1 : memref<2048xbf16, 2>
          } {unrolled_iteration = 1 : i32}
          %free_b1 = air.execute [%end] {
            memref.dealloc %l1_b1 : memref<2048xbf16, 2>
          } {unrolled_iteration = 1 : i32}
          %free_out1 = air.execute [%end] {
            memref.dealloc %l1_out1 : memref<2048xbf16, 2>
          } {unrolled_iteration = 1 : i32}
        }
      }
    }
    return
  }
}
