// swiglu, rows=2 cols=16384 herd_x=2, after air-dependency: the call of the external kernel is an execute
// that waits for both inputs, and the loop carries a token.
module {
  func.func private @silu_and_mul_bf16_4096(memref<4096xbf16, 2>, memref<4096xbf16, 2>, memref<4096xbf16, 2>, i32) attributes {link_with = "silu_and_mul_4096.o", link_source = "silu_and_mul.cc", link_defines = "silu_and_mul_bf16=silu_and_mul_bf16_4096", llvm.emit_c_interface}
  func.func @swiglu_async(%gate: memref<2x16384xbf16>, %up: memref<2x16384xbf16>, %out: memref<2x16384xbf16>) {
    %launched = air.launch async () in () args(%gate_1=%gate, %up_1=%up, %out_1=%out) : memref<2x16384xbf16>, memref<2x16384xbf16>, memref<2x16384xbf16> attributes {id = 1 : i32} {
      %segment = air.segment @swiglu_segment async args(%gate_2=%gate_1, %up_2=%up_1, %out_2=%out_1) : memref<2x16384xbf16>, memref<2x16384xbf16>, memref<2x16384xbf16> attributes {id = 2 : i32} {
        %c1 = arith.constant 1 : index
        %c2 = arith.constant 2 : index
        %herd = air.herd @swiglu_herd async tile (%hx, %hy) in (%nx=%c2, %ny=%c1) args(%gate_3=%gate_2, %up_3=%up_2, %out_3=%out_2) : memref<2x16384xbf16>, memref<2x16384xbf16>, memref<2x16384xbf16> attributes {id = 3 : i32, link_with = "silu_and_mul_4096.o"} {
          %c0 = arith.constant 0 : index
          %c1 = arith.constant 1 : index
          %c4096 = arith.constant 4096 : index
          %c16384 = arith.constant 16384 : index
          %n = arith.constant 4096 : i32
          %l1_gate_new, %l1_gate = air.execute -> (memref<4096xbf16, 2>) {
            %alloc = memref.alloc() : memref<4096xbf16, 2>
            air.execute_terminator %alloc : memref<4096xbf16, 2>
          } {id = 1 : i32}
          %l1_up_new, %l1_up = air.execute -> (memref<4096xbf16, 2>) {
            %alloc = memref.alloc() : memref<4096xbf16, 2>
            air.execute_terminator %alloc : memref<4096xbf16, 2>
          } {id = 2 : i32}
          %l1_out_new, %l1_out = air.execute -> (memref<4096xbf16, 2>) {
            %alloc = memref.alloc() : memref<4096xbf16, 2>
            air.execute_terminator %alloc : memref<4096xbf16, 2>
          } {id = 3 : i32}
          %ready = air.wait_all async [%l1_gate_new, %l1_up_new, %l1_out_new] {id = 1 : i32}
          %runs = scf.for %i = %c0 to %c16384 step %c4096 iter_args(%run = %ready) -> (!air.async.token) {
            %in_gate = air.dma_memcpy_nd async [%run] (%l1_gate[] [] [], %gate_3[%hx, %i] [%c1, %c4096] [%c16384, %c1]) {id = 1 : i32} : (memref<4096xbf16, 2>, memref<2x16384xbf16>)
            %in_up = air.dma_memcpy_nd async [%run] (%l1_up[] [] [], %up_3[%hx, %i] [%c1, %c4096] [%c16384, %c1]) {id = 2 : i32} : (memref<4096xbf16, 2>, memref<2x16384xbf16>)
            %made = air.execute [%run, %in_gate, %in_up] {
              func.call @silu_and_mul_bf16_4096(%l1_gate, %l1_up, %l1_out, %n) : (memref<4096xbf16, 2>, memref<4096xbf16, 2>, memref<4096xbf16, 2>, i32) -> ()
            } {id = 4 : i32}
            %stored = air.dma_memcpy_nd async [%made] (%out_3[%hx, %i] [%c1, %c4096] [%c16384, %c1], %l1_out[] [] []) {id = 3 : i32} : (memref<2x16384xbf16>, memref<4096xbf16, 2>)
            %done = air.wait_all async [%in_gate, %in_up, %made, %stored] {id = 2 : i32}
            scf.yield %done : !air.async.token
          }
          %free_gate = air.execute [%runs] {
            memref.dealloc %l1_gate : memref<4096xbf16, 2>
          } {id = 5 : i32}
          %free_up = air.execute [%runs] {
            memref.dealloc %l1_up : memref<4096xbf16, 2>
          } {id = 6 : i32}
          %free_out = air.execute [%runs] {
            memref.dealloc %l1_out : memref<4096xbf16, 2>
          } {id = 7 : i32}
        }
      }
    }
    return
  }
}
