// swiglu, rows=2 cols=16384 herd_x=2, after air-ping-pong-transform with keep-memref-dealloc: two of every
// buffer come before the loop, and their deallocs stay in it, as the pass leaves them. A buffer is used again
// in the next step.
module {
  air.channel @swiglu_pingpong_0 [2, 1]
  air.channel @swiglu_pingpong_1 [2, 1]
  air.channel @swiglu_pingpong_2 [2, 1]
  func.func private @silu_and_mul_bf16_4096(memref<4096xbf16, 2>, memref<4096xbf16, 2>, memref<4096xbf16, 2>, i32) attributes {link_with = "silu_and_mul_4096.o", link_source = "silu_and_mul.cc", link_defines = "silu_and_mul_bf16=silu_and_mul_bf16_4096", llvm.emit_c_interface}
  func.func @swiglu_pingpong(%gate: memref<2x16384xbf16>, %up: memref<2x16384xbf16>, %out: memref<2x16384xbf16>) {
    %launched = air.launch async () in () args(%gate_1=%gate, %up_1=%up, %out_1=%out) : memref<2x16384xbf16>, memref<2x16384xbf16>, memref<2x16384xbf16> attributes {id = 1 : i32} {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c2 = arith.constant 2 : index
      %c4096 = arith.constant 4096 : index
      %c16384 = arith.constant 16384 : index
      %begin = air.wait_all async
      %gate_out = scf.parallel (%px, %py) = (%c0, %c0) to (%c2, %c1) step (%c1, %c1) init (%begin) -> !air.async.token {
        %gate_out_runs = scf.for %i = %c0 to %c16384 step %c4096 iter_args(%run = %begin) -> (!air.async.token) {
          %gate_out_one = air.channel.put async [%run] @swiglu_pingpong_0[%px, %py] (%gate_1[%px, %i] [%c1, %c4096] [%c16384, %c1]) {id = 1 : i32} : (memref<2x16384xbf16>)
          scf.yield %gate_out_one : !air.async.token
        }
        scf.reduce(%gate_out_runs : !air.async.token) {
        ^bb0(%left: !air.async.token, %right: !air.async.token):
          %both = air.wait_all async [%left, %right]
          scf.reduce.return %both : !air.async.token
        }
      }
      %up_out = scf.parallel (%px, %py) = (%c0, %c0) to (%c2, %c1) step (%c1, %c1) init (%begin) -> !air.async.token {
        %up_out_runs = scf.for %i = %c0 to %c16384 step %c4096 iter_args(%run = %begin) -> (!air.async.token) {
          %up_out_one = air.channel.put async [%run] @swiglu_pingpong_1[%px, %py] (%up_1[%px, %i] [%c1, %c4096] [%c16384, %c1]) {id = 2 : i32} : (memref<2x16384xbf16>)
          scf.yield %up_out_one : !air.async.token
        }
        scf.reduce(%up_out_runs : !air.async.token) {
        ^bb0(%left: !air.async.token, %right: !air.async.token):
          %both = air.wait_all async [%left, %right]
          scf.reduce.return %both : !air.async.token
        }
      }
      %result_in = scf.parallel (%px, %py) = (%c0, %c0) to (%c2, %c1) step (%c1, %c1) init (%begin) -> !air.async.token {
        %result_in_runs = scf.for %i = %c0 to %c16384 step %c4096 iter_args(%run = %begin) -> (!air.async.token) {
          %result_in_one = air.channel.get async [%run] @swiglu_pingpong_2[%px, %py] (%out_1[%px, %i] [%c1, %c4096] [%c16384, %c1]) {id = 3 : i32} : (memref<2x16384xbf16>)
          scf.yield %result_in_one : !air.async.token
        }
        scf.reduce(%result_in_runs : !air.async.token) {
        ^bb0(%left: !air.async.token, %right: !air.async.token):
          %both = air.wait_all async [%left, %right]
          scf.reduce.return %both : !air.async.token
        }
      }
      %segment = air.segment @swiglu_segment async attributes {id = 2 : i32} {
        %c1 = arith.constant 1 : index
        %c2 = arith.constant 2 : index
        %herd = air.herd @swiglu_herd async tile (%hx, %hy) in (%nx=%c2, %ny=%c1) attributes {id = 3 : i32, link_with = "silu_and_mul_4096.o"} {
          %c0 = arith.constant 0 : index
          %c8192 = arith.constant 8192 : index
          %c16384 = arith.constant 16384 : index
          %n = arith.constant 4096 : i32
          %ready = air.wait_all async
          %l1_out1_new, %l1_out1 = air.execute [%ready] -> (memref<4096xbf16, 2>) {
            %alloc = memref.alloc() : memref<4096xbf16, 2>
            air.execute_terminator %alloc : memref<4096xbf16, 2>
          } {unrolled_iteration = 1 : i32}
          %l1_up1_new, %l1_up1 = air.execute [%l1_out1_new] -> (memref<4096xbf16, 2>) {
            %alloc = memref.alloc() : memref<4096xbf16, 2>
            air.execute_terminator %alloc : memref<4096xbf16, 2>
          } {unrolled_iteration = 1 : i32}
          %l1_gate1_new, %l1_gate1 = air.execute [%l1_up1_new] -> (memref<4096xbf16, 2>) {
            %alloc = memref.alloc() : memref<4096xbf16, 2>
            air.execute_terminator %alloc : memref<4096xbf16, 2>
          } {unrolled_iteration = 1 : i32}
          %l1_out0_new, %l1_out0 = air.execute [%l1_gate1_new] -> (memref<4096xbf16, 2>) {
            %alloc = memref.alloc() : memref<4096xbf16, 2>
            air.execute_terminator %alloc : memref<4096xbf16, 2>
          } {unrolled_iteration = 0 : i32}
          %l1_up0_new, %l1_up0 = air.execute [%l1_out0_new] -> (memref<4096xbf16, 2>) {
            %alloc = memref.alloc() : memref<4096xbf16, 2>
            air.execute_terminator %alloc : memref<4096xbf16, 2>
          } {unrolled_iteration = 0 : i32}
          %l1_gate0_new, %l1_gate0 = air.execute [%l1_up0_new] -> (memref<4096xbf16, 2>) {
            %alloc = memref.alloc() : memref<4096xbf16, 2>
            air.execute_terminator %alloc : memref<4096xbf16, 2>
          } {unrolled_iteration = 0 : i32}
          %runs:4 = scf.for %i = %c0 to %c16384 step %c8192 iter_args(%ping = %l1_gate0_new, %pong = %l1_gate0_new, %back = %l1_gate0_new, %front = %l1_gate0_new) -> (!air.async.token, !air.async.token, !air.async.token, !air.async.token) {
            %in_gate0 = air.channel.get async [%front, %ping] @swiglu_pingpong_0[%hx, %hy] (%l1_gate0[] [] []) {id = 4 : i32, unrolled_iteration = 0 : i32} : (memref<4096xbf16, 2>)
            %in_up0 = air.channel.get async [%front, %ping] @swiglu_pingpong_1[%hx, %hy] (%l1_up0[] [] []) {id = 5 : i32, unrolled_iteration = 0 : i32} : (memref<4096xbf16, 2>)
            %in0 = air.wait_all async [%in_gate0, %in_up0]
            %made0 = air.execute [%back, %in0] {
              func.call @silu_and_mul_bf16_4096(%l1_gate0, %l1_up0, %l1_out0, %n) : (memref<4096xbf16, 2>, memref<4096xbf16, 2>, memref<4096xbf16, 2>, i32) -> ()
            } {unrolled_iteration = 0 : i32}
            %free_gate0 = air.execute [%made0] {
              memref.dealloc %l1_gate0 : memref<4096xbf16, 2>
            } {unrolled_iteration = 0 : i32}
            %free_up0 = air.execute [%made0] {
              memref.dealloc %l1_up0 : memref<4096xbf16, 2>
            } {unrolled_iteration = 0 : i32}
            %stored0 = air.channel.put async [%made0] @swiglu_pingpong_2[%hx, %hy] (%l1_out0[] [] []) {id = 6 : i32, unrolled_iteration = 0 : i32} : (memref<4096xbf16, 2>)
            %free_out0 = air.execute [%stored0] {
              memref.dealloc %l1_out0 : memref<4096xbf16, 2>
            } {unrolled_iteration = 0 : i32}
            %in_gate1 = air.channel.get async [%in0, %pong] @swiglu_pingpong_0[%hx, %hy] (%l1_gate1[] [] []) {id = 7 : i32, unrolled_iteration = 1 : i32} : (memref<4096xbf16, 2>)
            %in_up1 = air.channel.get async [%in0, %pong] @swiglu_pingpong_1[%hx, %hy] (%l1_up1[] [] []) {id = 8 : i32, unrolled_iteration = 1 : i32} : (memref<4096xbf16, 2>)
            %in1 = air.wait_all async [%in_gate1, %in_up1]
            %made1 = air.execute [%stored0, %in1] {
              func.call @silu_and_mul_bf16_4096(%l1_gate1, %l1_up1, %l1_out1, %n) : (memref<4096xbf16, 2>, memref<4096xbf16, 2>, memref<4096xbf16, 2>, i32) -> ()
            } {unrolled_iteration = 1 : i32}
            %free_gate1 = air.execute [%made1] {
              memref.dealloc %l1_gate1 : memref<4096xbf16, 2>
            } {unrolled_iteration = 1 : i32}
            %free_up1 = air.execute [%made1] {
              memref.dealloc %l1_up1 : memref<4096xbf16, 2>
            } {unrolled_iteration = 1 : i32}
            %stored1 = air.channel.put async [%made1] @swiglu_pingpong_2[%hx, %hy] (%l1_out1[] [] []) {id = 9 : i32, unrolled_iteration = 1 : i32} : (memref<4096xbf16, 2>)
            %free_out1 = air.execute [%stored1] {
              memref.dealloc %l1_out1 : memref<4096xbf16, 2>
            } {unrolled_iteration = 1 : i32}
            scf.yield %stored0, %stored1, %stored1, %in1 : !air.async.token, !air.async.token, !air.async.token, !air.async.token
          } {unroll = 2 : i32}
        }
      }
    }
    return
  }
}
