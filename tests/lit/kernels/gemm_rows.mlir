// Every loop of the product runs more than once, on two columns of two cores.
// RUN: %kernels show gemm_rows --m=8 --k=64 --n=64 --tile-k-l2=32 --tile-k-l1=16 --tile-n=8 --herd-x=2 --herd-y=2 | %golden %s
builtin.module {
  func.func private @transpose_blocks_bf16_1x2(memref<1x2x8x8xbf16, 2>) -> () attributes {link_with = "transpose_blocks_1x2.o", link_source = "transpose_blocks.cc", link_defines = "TRANSPOSED_BLOCKS=2 transpose_blocks_bf16=transpose_blocks_bf16_1x2", link_optimize = "O2", llvm.emit_c_interface}
  func.func @gemm_rows(%a: memref<8x64xbf16>, %b: memref<64x64xbf16>, %c: memref<8x64xbf16>) {
    %c2 = arith.constant 2 : index
    %c1 = arith.constant 1 : index
    air.launch (%lx, %ly) in (%lsx=%c2, %lsy=%c1) args(%a_1=%a, %b_1=%b, %c_1=%c) : memref<8x64xbf16>, memref<64x64xbf16>, memref<8x64xbf16> {
      air.segment @gemm_segment args(%a_2=%a_1, %ly_1=%ly, %b_2=%b_1, %lx_1=%lx, %c_2=%c_1) : memref<8x64xbf16>, index, memref<64x64xbf16>, index, memref<8x64xbf16> {
        %c2_1 = arith.constant 2 : index
        %c0 = arith.constant 0 : index
        %c64 = arith.constant 64 : index
        %c32 = arith.constant 32 : index
        %c8 = arith.constant 8 : index
        %c1_1 = arith.constant 1 : index
        %c16 = arith.constant 16 : index
        %c1024 = arith.constant 1024 : index
        %l2_a = memref.alloc() : memref<8x32xbf16, 1>
        %l2_b = memref.alloc() : memref<2x16x32xbf16, 1>
        %l2_c = memref.alloc() : memref<8x2x16xbf16, 1>
        %accumulator = memref.alloc() : memref<2x2x1x1x8x8xf32, 2>
        air.herd @gemm_herd tile (%hx, %hy) in (%hsx=%c2_1, %hsy=%c2_1) args(%accumulator_1=%accumulator) : memref<2x2x1x1x8x8xf32, 2> {
          %f32_vector = arith.constant dense<0.000000e+00> : vector<8x8xf32>
          %c0_1 = arith.constant 0 : index
          %c1_2 = arith.constant 1 : index
          scf.for %i = %c0_1 to %c1_2 step %c1_2 {
            scf.for %i_1 = %c0_1 to %c1_2 step %c1_2 {
              vector.transfer_write %f32_vector, %accumulator_1[%hx, %hy, %i, %i_1, %c0_1, %c0_1] {in_bounds = [true, true]} : vector<8x8xf32>, memref<2x2x1x1x8x8xf32, 2>
            }
          }
        }
        scf.for %i = %c0 to %c64 step %c32 {
          %at = affine.apply affine_map<()[s0] -> ((s0 * 8))> ()[%ly_1]
          air.dma_memcpy_nd (%l2_a[] [] [], %a_2[%at, %i] [%c8, %c32] [%c64, %c1_1]) : (memref<8x32xbf16, 1>, memref<8x64xbf16>)
          %at_1 = affine.apply affine_map<()[s0] -> ((s0 * 32))> ()[%lx_1]
          air.dma_memcpy_nd (%l2_b[] [] [], %b_2[%c0, %at_1, %i] [%c2_1, %c16, %c32] [%c1024, %c64, %c1_1]) : (memref<2x16x32xbf16, 1>, memref<64x64xbf16>)
          air.herd @gemm_herd tile (%hx, %hy) in (%hsx=%c2_1, %hsy=%c2_1) args(%l2_a_1=%l2_a, %l2_b_1=%l2_b, %accumulator_1=%accumulator) : memref<8x32xbf16, 1>, memref<2x16x32xbf16, 1>, memref<2x2x1x1x8x8xf32, 2> {
            %c0_1 = arith.constant 0 : index
            %c32_1 = arith.constant 32 : index
            %c16_1 = arith.constant 16 : index
            %c2_2 = arith.constant 2 : index
            %c1_2 = arith.constant 1 : index
            %c8_1 = arith.constant 8 : index
            %c256 = arith.constant 256 : index
            %c512 = arith.constant 512 : index
            %f32_constant = arith.constant 0.000000e+00 : f32
            %bf16_constant = arith.constant 0.000000e+00 : bf16
            %l1_a = memref.alloc() : memref<2x1x8x8xbf16, 2>
            %l1_b = memref.alloc() : memref<1x2x8x8xbf16, 2>
            scf.for %i_1 = %c0_1 to %c32_1 step %c16_1 {
              air.dma_memcpy_nd (%l1_a[] [] [], %l2_a_1[%c0_1, %c0_1, %c0_1, %i_1] [%c2_2, %c1_2, %c8_1, %c8_1] [%c8_1, %c256, %c32_1, %c1_2]) : (memref<2x1x8x8xbf16, 2>, memref<8x32xbf16, 1>)
              %at_2 = affine.apply affine_map<()[s0] -> ((s0 * 8))> ()[%hy]
              air.dma_memcpy_nd (%l1_b[] [] [], %l2_b_1[%hx, %c0_1, %c0_1, %at_2, %i_1] [%c1_2, %c1_2, %c2_2, %c8_1, %c8_1] [%c512, %c256, %c8_1, %c32_1, %c1_2]) : (memref<1x2x8x8xbf16, 2>, memref<2x16x32xbf16, 1>)
              func.call @transpose_blocks_bf16_1x2(%l1_b) : (memref<1x2x8x8xbf16, 2>) -> ()
              scf.for %i_2 = %c0_1 to %c1_2 step %c1_2 {
                scf.for %i_3 = %c0_1 to %c1_2 step %c1_2 {
                  %0 = vector.transfer_read %accumulator_1[%hx, %hy, %i_2, %i_3, %c0_1, %c0_1], %f32_constant {in_bounds = [true, true]} : memref<2x2x1x1x8x8xf32, 2>, vector<8x8xf32>
                  %1 = vector.shape_cast %0 : vector<8x8xf32> to vector<64xf32>
                  %2 = scf.for %i_4 = %c0_1 to %c2_2 step %c1_2 iter_args(%3 = %1) -> (vector<64xf32>) {
                    %4 = vector.transfer_read %l1_a[%i_4, %i_3, %c0_1, %c0_1], %bf16_constant {in_bounds = [true, true]} : memref<2x1x8x8xbf16, 2>, vector<8x8xbf16>
                    %5 = vector.transfer_read %l1_b[%i_2, %i_4, %c0_1, %c0_1], %bf16_constant {in_bounds = [true, true]} : memref<1x2x8x8xbf16, 2>, vector<8x8xbf16>
                    %6 = vector.shape_cast %3 : vector<64xf32> to vector<8x8xf32>
                    %7 = vector.contract {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"], kind = #vector.kind<add>} %4, %5, %6 : vector<8x8xbf16>, vector<8x8xbf16> into vector<8x8xf32>
                    %8 = vector.shape_cast %7 : vector<8x8xf32> to vector<64xf32>
                    scf.yield %8 : vector<64xf32>
                  }
                  %9 = vector.shape_cast %2 : vector<64xf32> to vector<8x8xf32>
                  vector.transfer_write %9, %accumulator_1[%hx, %hy, %i_2, %i_3, %c0_1, %c0_1] {in_bounds = [true, true]} : vector<8x8xf32>, memref<2x2x1x1x8x8xf32, 2>
                }
              }
            }
            memref.dealloc %l1_a : memref<2x1x8x8xbf16, 2>
            memref.dealloc %l1_b : memref<1x2x8x8xbf16, 2>
          }
        }
        air.herd @gemm_herd tile (%hx, %hy) in (%hsx=%c2_1, %hsy=%c2_1) args(%accumulator_1=%accumulator, %l2_c_1=%l2_c) : memref<2x2x1x1x8x8xf32, 2>, memref<8x2x16xbf16, 1> {
          %c0_1 = arith.constant 0 : index
          %c1_2 = arith.constant 1 : index
          %f32_constant = arith.constant 0.000000e+00 : f32
          %c8_1 = arith.constant 8 : index
          %c32_1 = arith.constant 32 : index
          %c16_1 = arith.constant 16 : index
          %c64_1 = arith.constant 64 : index
          %rounded = memref.alloc() : memref<1x1x8x8xbf16, 2>
          scf.for %i_1 = %c0_1 to %c1_2 step %c1_2 {
            scf.for %i_2 = %c0_1 to %c1_2 step %c1_2 {
              %0 = vector.transfer_read %accumulator_1[%hx, %hy, %i_1, %i_2, %c0_1, %c0_1], %f32_constant {in_bounds = [true, true]} : memref<2x2x1x1x8x8xf32, 2>, vector<8x8xf32>
              %1 = arith.truncf %0 : vector<8x8xf32> to vector<8x8xbf16>
              vector.transfer_write %1, %rounded[%i_1, %i_2, %c0_1, %c0_1] {in_bounds = [true, true]} : vector<8x8xbf16>, memref<1x1x8x8xbf16, 2>
            }
          }
          %at_2 = affine.apply affine_map<()[s0] -> ((s0 * 8))> ()[%hy]
          air.dma_memcpy_nd (%l2_c_1[%c0_1, %hx, %at_2] [%c8_1, %c1_2, %c8_1] [%c32_1, %c16_1, %c1_2], %rounded[%c0_1, %c0_1, %c0_1] [%c8_1, %c1_2, %c8_1] [%c8_1, %c64_1, %c1_2]) : (memref<8x2x16xbf16, 1>, memref<1x1x8x8xbf16, 2>)
          memref.dealloc %rounded : memref<1x1x8x8xbf16, 2>
        }
        %at_2 = affine.apply affine_map<()[s0] -> ((s0 * 8))> ()[%ly_1]
        %at_3 = affine.apply affine_map<()[s0] -> ((s0 * 32))> ()[%lx_1]
        air.dma_memcpy_nd (%c_2[%at_2, %c0, %at_3] [%c8, %c2_1, %c16] [%c64, %c16, %c1_1], %l2_c[] [] []) : (memref<8x64xbf16>, memref<8x2x16xbf16, 1>)
        memref.dealloc %l2_a : memref<8x32xbf16, 1>
        memref.dealloc %l2_b : memref<2x16x32xbf16, 1>
        memref.dealloc %l2_c : memref<8x2x16xbf16, 1>
        memref.dealloc %accumulator : memref<2x2x1x1x8x8xf32, 2>
      }
    }
    func.return
  }
}
