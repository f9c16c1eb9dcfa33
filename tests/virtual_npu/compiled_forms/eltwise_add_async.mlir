// eltwise_add, rows=2 cols=8192 herd_x=2, after air-dependency: every operation on memory is asynchronous and
// names what it waits for; both loops carry a token.
module {
  func.func @eltwise_add_async(%a: memref<2x8192xbf16>, %b: memref<2x8192xbf16>, %out: memref<2x8192xbf16>) {
    %launched = air.launch async () in () args(%a_1=%a, %b_1=%b, %out_1=%out) : memref<2x8192xbf16>, memref<2x8192xbf16>, memref<2x8192xbf16> attributes {id = 1 : i32} {
      %segment = air.segment @eltwise_add_segment async args(%a_2=%a_1, %b_2=%b_1, %out_2=%out_1) : memref<2x8192xbf16>, memref<2x8192xbf16>, memref<2x8192xbf16> attributes {id = 2 : i32} {
        %c1 = arith.constant 1 : index
        %c2 = arith.constant 2 : index
        %herd = air.herd @eltwise_add_herd async tile (%hx, %hy) in (%nx=%c2, %ny=%c1) args(%a_3=%a_2, %b_3=%b_2, %out_3=%out_2) : memref<2x8192xbf16>, memref<2x8192xbf16>, memref<2x8192xbf16> attributes {id = 3 : i32} {
          %c0 = arith.constant 0 : index
          %c1 = arith.constant 1 : index
          %c16 = arith.constant 16 : index
          %c2048 = arith.constant 2048 : index
          %c8192 = arith.constant 8192 : index
          %zero = arith.constant 0.000000e+00 : bf16
          %l1_a_new, %l1_a = air.execute -> (memref<2048xbf16, 2>) {
            %alloc = memref.alloc() : memref<2048xbf16, 2>
            air.execute_terminator %alloc : memref<2048xbf16, 2>
          } {id = 1 : i32}
          %l1_b_new, %l1_b = air.execute -> (memref<2048xbf16, 2>) {
            %alloc = memref.alloc() : memref<2048xbf16, 2>
            air.execute_terminator %alloc : memref<2048xbf16, 2>
          } {id = 2 : i32}
          %l1_out_new, %l1_out = air.execute -> (memref<2048xbf16, 2>) {
            %alloc = memref.alloc() : memref<2048xbf16, 2>
            air.execute_terminator %alloc : memref<2048xbf16, 2>
          } {id = 3 : i32}
          %ready = air.wait_all async [%l1_a_new, %l1_b_new, %l1_out_new] {id = 1 : i32}
          %runs = scf.for %i = %c0 to %c8192 step %c2048 iter_args(%run = %ready) -> (!air.async.token) {
            %in_a = air.dma_memcpy_nd async [%run] (%l1_a[] [] [], %a_3[%hx, %i] [%c1, %c2048] [%c8192, %c1]) {id = 1 : i32} : (memref<2048xbf16, 2>, memref<2x8192xbf16>)
            %in_b = air.dma_memcpy_nd async [%run] (%l1_b[] [] [], %b_3[%hx, %i] [%c1, %c2048] [%c8192, %c1]) {id = 2 : i32} : (memref<2048xbf16, 2>, memref<2x8192xbf16>)
            %filled = air.wait_all async [%run, %in_a, %in_b] {id = 2 : i32}
            %sum = scf.for %j = %c0 to %c2048 step %c16 iter_args(%chain = %filled) -> (!air.async.token) {
              %sum_ra, %sum_va = air.execute [%chain] -> (vector<16xbf16>) {
                %v = vector.transfer_read %l1_a[%j], %zero {in_bounds = [true]} : memref<2048xbf16, 2>, vector<16xbf16>
                air.execute_terminator %v : vector<16xbf16>
              } {id = 4 : i32}
              %sum_rb, %sum_vb = air.execute [%chain] -> (vector<16xbf16>) {
                %v = vector.transfer_read %l1_b[%j], %zero {in_bounds = [true]} : memref<2048xbf16, 2>, vector<16xbf16>
                air.execute_terminator %v : vector<16xbf16>
              } {id = 5 : i32}
              %sum_vs = arith.addf %sum_va, %sum_vb : vector<16xbf16>
              %sum_w = air.execute [%sum_ra, %sum_rb] {
                vector.transfer_write %sum_vs, %l1_out[%j] {in_bounds = [true]} : vector<16xbf16>, memref<2048xbf16, 2>
              } {id = 6 : i32}
              scf.yield %sum_w : !air.async.token
            }
            %stored = air.dma_memcpy_nd async [%sum] (%out_3[%hx, %i] [%c1, %c2048] [%c8192, %c1], %l1_out[] [] []) {id = 3 : i32} : (memref<2x8192xbf16>, memref<2048xbf16, 2>)
            %done = air.wait_all async [%in_a, %in_b, %sum, %stored] {id = 3 : i32}
            scf.yield %done : !air.async.token
          }
          %free_a = air.execute [%runs] {
            memref.dealloc %l1_a : memref<2048xbf16, 2>
          } {id = 7 : i32}
          %free_b = air.execute [%runs] {
            memref.dealloc %l1_b : memref<2048xbf16, 2>
          } {id = 8 : i32}
          %free_out = air.execute [%runs] {
            memref.dealloc %l1_out : memref<2048xbf16, 2>
          } {id = 9 : i32}
        }
      }
    }
    return
  }
}
