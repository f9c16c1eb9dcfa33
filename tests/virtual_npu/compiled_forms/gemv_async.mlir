// gemv, m=16 k=64 herd_m=2 tile_m=4 m_input=2, after air-dependency: two loops, the inner one over the rows
// of one run of results; positions in L3 are made in executes.
#input = affine_map<()[s0, s1, s2] -> (s0 * 8 + s1 + s2)>
#output = affine_map<()[s0, s1] -> (s0 * 8 + s1)>
module {
  func.func private @matvec_vectorized_bf16_bf16_2x64_4(i32, i32, i32, memref<2x64xbf16, 2>, memref<64xbf16, 2>, memref<4xbf16, 2>) attributes {link_with = "mv_2x64_4.o", link_source = "mv.cc", link_defines = "DIM_M_OUTPUT=4 matvec_vectorized_bf16_bf16=matvec_vectorized_bf16_bf16_2x64_4 linalg_fill_bf16=linalg_fill_bf16_2x64_4", llvm.emit_c_interface}
  func.func @gemv_async(%weight: memref<16x64xbf16>, %x: memref<64xbf16>, %out: memref<16xbf16>) {
    %launched = air.launch async () in () args(%x_1=%x, %weight_1=%weight, %out_1=%out) : memref<64xbf16>, memref<16x64xbf16>, memref<16xbf16> attributes {id = 1 : i32} {
      %segment = air.segment @gemv_segment async args(%x_2=%x_1, %weight_2=%weight_1, %out_2=%out_1) : memref<64xbf16>, memref<16x64xbf16>, memref<16xbf16> attributes {id = 2 : i32} {
        %c1 = arith.constant 1 : index
        %c2 = arith.constant 2 : index
        %herd = air.herd @gemv_herd async tile (%hx, %hy) in (%nx=%c2, %ny=%c1) args(%x_3=%x_2, %weight_3=%weight_2, %out_3=%out_2) : memref<64xbf16>, memref<16x64xbf16>, memref<16xbf16> attributes {id = 3 : i32} {
          %c0 = arith.constant 0 : index
          %c1 = arith.constant 1 : index
          %c2 = arith.constant 2 : index
          %c4 = arith.constant 4 : index
          %c8 = arith.constant 8 : index
          %c64 = arith.constant 64 : index
          %two = arith.constant 2 : i32
          %deep = arith.constant 64 : i32
          %l1_x_new, %l1_x = air.execute -> (memref<64xbf16, 2>) {
            %alloc = memref.alloc() : memref<64xbf16, 2>
            air.execute_terminator %alloc : memref<64xbf16, 2>
          } {id = 1 : i32}
          %l1_weight_new, %l1_weight = air.execute -> (memref<2x64xbf16, 2>) {
            %alloc = memref.alloc() : memref<2x64xbf16, 2>
            air.execute_terminator %alloc : memref<2x64xbf16, 2>
          } {id = 2 : i32}
          %l1_out_new, %l1_out = air.execute -> (memref<4xbf16, 2>) {
            %alloc = memref.alloc() : memref<4xbf16, 2>
            air.execute_terminator %alloc : memref<4xbf16, 2>
          } {id = 3 : i32}
          %in_x = air.dma_memcpy_nd async [%l1_x_new] (%l1_x[] [] [], %x_3[] [] []) {id = 1 : i32} : (memref<64xbf16, 2>, memref<64xbf16>)
          %ready = air.wait_all async [%in_x, %l1_weight_new, %l1_out_new] {id = 1 : i32}
          %runs = scf.for %i = %c0 to %c8 step %c4 iter_args(%run = %ready) -> (!air.async.token) {
            %rows = scf.for %j = %c0 to %c4 step %c2 iter_args(%row = %run) -> (!air.async.token) {
              %at_known, %at = air.execute [%row] -> (index) {
                %pos = affine.apply #input()[%hx, %i, %j]
                air.execute_terminator %pos : index
              } {id = 4 : i32}
              %in_weight = air.dma_memcpy_nd async [%at_known] (%l1_weight[] [] [], %weight_3[%at, %c0] [%c2, %c64] [%c64, %c1]) {id = 2 : i32} : (memref<2x64xbf16, 2>, memref<16x64xbf16>)
              %offset = arith.index_cast %j : index to i32
              %made = air.execute [%row, %in_weight] {
                func.call @matvec_vectorized_bf16_bf16_2x64_4(%two, %deep, %offset, %l1_weight, %l1_x, %l1_out) : (i32, i32, i32, memref<2x64xbf16, 2>, memref<64xbf16, 2>, memref<4xbf16, 2>) -> ()
              } {id = 5 : i32}
              scf.yield %made : !air.async.token
            }
            %to_known, %to = air.execute [%run] -> (index) {
              %pos = affine.apply #output()[%hx, %i]
              air.execute_terminator %pos : index
            } {id = 6 : i32}
            %stored = air.dma_memcpy_nd async [%rows, %to_known] (%out_3[%to] [%c4] [%c1], %l1_out[] [] []) {id = 3 : i32} : (memref<16xbf16>, memref<4xbf16, 2>)
            %done = air.wait_all async [%rows, %stored] {id = 2 : i32}
            scf.yield %done : !air.async.token
          }
          %free_x = air.execute [%runs] {
            memref.dealloc %l1_x : memref<64xbf16, 2>
          } {id = 7 : i32}
          %free_weight = air.execute [%runs] {
            memref.dealloc %l1_weight : memref<2x64xbf16, 2>
          } {id = 8 : i32}
          %free_out = air.execute [%runs] {
            memref.dealloc %l1_out : memref<4xbf16, 2>
          } {id = 9 : i32}
        }
      }
    }
    return
  }
}
