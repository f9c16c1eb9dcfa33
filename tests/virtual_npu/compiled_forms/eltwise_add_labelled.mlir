// eltwise_add, rows=2 cols=8192 herd_x=2, after air-fuse-alloc-dealloc and air-label-scf-for-to-ping-pong: a
// loop that allocates its buffers, with the marks for the transformation to come (unroll, hoist_alloc), which
// do nothing yet.
module {
  air.channel @eltwise_add_labelled_0 [2, 1]
  air.channel @eltwise_add_labelled_1 [2, 1]
  air.channel @eltwise_add_labelled_2 [2, 1]
  func.func @eltwise_add_labelled(%a: memref<2x8192xbf16>, %b: memref<2x8192xbf16>, %out: memref<2x8192xbf16>) {
    %launched = air.launch async () in () args(%a_1=%a, %b_1=%b, %out_1=%out) : memref<2x8192xbf16>, memref<2x8192xbf16>, memref<2x8192xbf16> attributes {id = 1 : i32} {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c2 = arith.constant 2 : index
      %c2048 = arith.constant 2048 : index
      %c8192 = arith.constant 8192 : index
      %begin = air.wait_all async
      %a_out = scf.parallel (%px, %py) = (%c0, %c0) to (%c2, %c1) step (%c1, %c1) init (%begin) -> !air.async.token {
        %a_out_runs = scf.for %i = %c0 to %c8192 step %c2048 iter_args(%run = %begin) -> (!air.async.token) {
          %a_out_one = air.channel.put async [%run] @eltwise_add_labelled_0[%px, %py] (%a_1[%px, %i] [%c1, %c2048] [%c8192, %c1]) {id = 1 : i32} : (memref<2x8192xbf16>)
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
          %b_out_one = air.channel.put async [%run] @eltwise_add_labelled_1[%px, %py] (%b_1[%px, %i] [%c1, %c2048] [%c8192, %c1]) {id = 2 : i32} : (memref<2x8192xbf16>)
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
          %result_in_one = air.channel.get async [%run] @eltwise_add_labelled_2[%px, %py] (%out_1[%px, %i] [%c1, %c2048] [%c8192, %c1]) {id = 3 : i32} : (memref<2x8192xbf16>)
          scf.yield %result_in_one : !air.async.token
        }
        scf.reduce(%result_in_runs : !air.async.token) {
        ^bb0(%left: !air.async.token, %right: !air.async.token):
          %both = air.wait_all async [%left, %right]
          scf.reduce.return %both : !air.async.token
        }
      }
      %segment = air.segment @eltwise_add_segment async attributes {id = 2 : i32} {
        %c1 = arith.constant 1 : index
        %c2 = arith.constant 2 : index
        %herd = air.herd @eltwise_add_herd async tile (%hx, %hy) in (%nx=%c2, %ny=%c1) attributes {id = 3 : i32} {
          %c0 = arith.constant 0 : index
          %c1 = arith.constant 1 : index
          %c16 = arith.constant 16 : index
          %c2048 = arith.constant 2048 : index
          %c8192 = arith.constant 8192 : index
          %zero = arith.constant 0.000000e+00 : bf16
          %ready = air.wait_all async
          %runs = scf.for %i = %c0 to %c8192 step %c2048 iter_args(%run = %ready) -> (!air.async.token) {
            %l1_a_new, %l1_a = air.execute [%run] -> (memref<2048xbf16, 2>) {
              %alloc = memref.alloc() {hoist_alloc = true} : memref<2048xbf16, 2>
              air.execute_terminator %alloc : memref<2048xbf16, 2>
            }
            %in_a = air.channel.get async [%run, %l1_a_new] @eltwise_add_labelled_0[%hx, %hy] (%l1_a[] [] []) {id = 4 : i32} : (memref<2048xbf16, 2>)
            %l1_b_new, %l1_b = air.execute [%run] -> (memref<2048xbf16, 2>) {
              %alloc = memref.alloc() {hoist_alloc = true} : memref<2048xbf16, 2>
              air.execute_terminator %alloc : memref<2048xbf16, 2>
            }
            %in_b = air.channel.get async [%run, %l1_b_new] @eltwise_add_labelled_1[%hx, %hy] (%l1_b[] [] []) {id = 5 : i32} : (memref<2048xbf16, 2>)
            %l1_out_new, %l1_out = air.execute [%run] -> (memref<2048xbf16, 2>) {
              %alloc = memref.alloc() {hoist_alloc = true} : memref<2048xbf16, 2>
              air.execute_terminator %alloc : memref<2048xbf16, 2>
            }
            %filled = air.wait_all async [%in_a, %in_b, %l1_out_new]
            %sum = scf.for %j = %c0 to %c2048 step %c16 iter_args(%chain = %filled) -> (!air.async.token) {
              %sum_ra, %sum_va = air.execute [%chain] -> (vector<16xbf16>) {
                %v = vector.transfer_read %l1_a[%j], %zero {in_bounds = [true]} : memref<2048xbf16, 2>, vector<16xbf16>
                air.execute_terminator %v : vector<16xbf16>
              } {id = 1 : i32}
              %sum_rb, %sum_vb = air.execute [%chain] -> (vector<16xbf16>) {
                %v = vector.transfer_read %l1_b[%j], %zero {in_bounds = [true]} : memref<2048xbf16, 2>, vector<16xbf16>
                air.execute_terminator %v : vector<16xbf16>
              } {id = 2 : i32}
              %sum_vs = arith.addf %sum_va, %sum_vb : vector<16xbf16>
              %sum_w = air.execute [%sum_ra, %sum_rb] {
                vector.transfer_write %sum_vs, %l1_out[%j] {in_bounds = [true]} : vector<16xbf16>, memref<2048xbf16, 2>
              } {id = 3 : i32}
              scf.yield %sum_w : !air.async.token
            }
            %free_a = air.execute [%sum] {
              memref.dealloc %l1_a : memref<2048xbf16, 2>
            }
            %free_b = air.execute [%sum] {
              memref.dealloc %l1_b : memref<2048xbf16, 2>
            }
            %stored = air.channel.put async [%sum] @eltwise_add_labelled_2[%hx, %hy] (%l1_out[] [] []) {id = 6 : i32} : (memref<2048xbf16, 2>)
            %free_out = air.execute [%stored] {
              memref.dealloc %l1_out : memref<2048xbf16, 2>
            }
            %done = air.wait_all async [%free_a, %free_b, %free_out]
            scf.yield %done : !air.async.token
          } {unroll = 2 : i32}
        }
      }
    }
    return
  }
}
