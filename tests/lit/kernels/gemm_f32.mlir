// The smallest product, whose f32 sums go out as they are.
// RUN: %kernels show gemm_f32 --m=8 --k=8 --n=8 | %golden %s
builtin.module {
  func.func @gemm_f32(%a: memref<8x8xbf16>, %b: memref<8x8xbf16>, %c: memref<8x8xf32>) {
    %c1 = arith.constant 1 : index
    air.launch (%lx, %ly) in (%lsx=%c1, %lsy=%c1) args(%a_1=%a, %b_1=%b, %c_1=%c) : memref<8x8xbf16>, memref<8x8xbf16>, memref<8x8xf32> {
      air.segment @gemm_segment args(%a_2=%a_1, %ly_1=%ly, %b_2=%b_1, %lx_1=%lx, %c_2=%c_1) : memref<8x8xbf16>, index, memref<8x8xbf16>, index, memref<8x8xf32> {
        %c1_1 = arith.constant 1 : index
        %c0 = arith.constant 0 : index
        %c8 = arith.constant 8 : index
        %l2_a = memref.alloc() : memref<8x8xbf16, 1>
        %l2_b = memref.alloc() : memref<8x8xbf16, 1>
        %l2_c = memref.alloc() : memref<8x8xf32, 1>
        %accumulator = memref.alloc() : memref<1x1x1x1x8x8xf32, 2>
        air.herd @gemm_herd tile (%hx, %hy) in (%hsx=%c1_1, %hsy=%c1_1) args(%accumulator_1=%accumulator) : memref<1x1x1x1x8x8xf32, 2> {
          %f32_vector = arith.constant dense<0.000000e+00> : vector<8x8xf32>
          %c0_1 = arith.constant 0 : index
          %c1_2 = arith.constant 1 : index
          scf.for %i = %c0_1 to %c1_2 step %c1_2 {
            scf.for %i_1 = %c0_1 to %c1_2 step %c1_2 {
              vector.transfer_write %f32_vector, %accumulator_1[%hx, %hy, %i, %i_1, %c0_1, %c0_1] {in_bounds = [true, true]} : vector<8x8xf32>, memref<1x1x1x1x8x8xf32, 2>
            }
          }
        }
        scf.for %i = %c0 to %c8 step %c8 {
          %at = affine.apply affine_map<()[s0] -> ((s0 * 8))> ()[%ly_1]
          air.dma_memcpy_nd (%l2_a[] [] [], %a_2[%at, %i] [%c8, %c8] [%c8, %c1_1]) : (memref<8x8xbf16, 1>, memref<8x8xbf16>)
          %at_1 = affine.apply affine_map<()[s0] -> ((s0 * 8))> ()[%lx_1]
          air.dma_memcpy_nd (%l2_b[] [] [], %b_2[%i, %at_1] [%c8, %c8] [%c8, %c1_1]) : (memref<8x8xbf16, 1>, memref<8x8xbf16>)
          air.herd @gemm_herd tile (%hx, %hy) in (%hsx=%c1_1, %hsy=%c1_1) args(%l2_a_1=%l2_a, %l2_b_1=%l2_b, %accumulator_1=%accumulator) : memref<8x8xbf16, 1>, memref<8x8xbf16, 1>, memref<1x1x1x1x8x8xf32, 2> {
            %c0_1 = arith.constant 0 : index
            %c8_1 = arith.constant 8 : index
            %c1_2 = arith.constant 1 : index
            %c64 = arith.constant 64 : index
            %f32_constant = arith.constant 0.000000e+00 : f32
            %bf16_constant = arith.constant 0.000000e+00 : bf16
            %l1_a = memref.alloc() : memref<1x1x8x8xbf16, 2>
            %l1_b = memref.alloc() : memref<1x1x8x8xbf16, 2>
            scf.for %i_1 = %c0_1 to %c8_1 step %c8_1 {
              %at_2 = affine.apply affine_map<()[s0] -> ((s0 * 8))> ()[%hx]
              air.dma_memcpy_nd (%l1_a[] [] [], %l2_a_1[%c0_1, %c0_1, %at_2, %i_1] [%c1_2, %c1_2, %c8_1, %c8_1] [%c8_1, %c64, %c8_1, %c1_2]) : (memref<1x1x8x8xbf16, 2>, memref<8x8xbf16, 1>)
              %at_3 = affine.apply affine_map<()[s0] -> ((s0 * 8))> ()[%hy]
              air.dma_memcpy_nd (%l1_b[] [] [], %l2_b_1[%c0_1, %c0_1, %i_1, %at_3] [%c1_2, %c1_2, %c8_1, %c8_1] [%c8_1, %c64, %c8_1, %c1_2]) : (memref<1x1x8x8xbf16, 2>, memref<8x8xbf16, 1>)
              scf.for %i_2 = %c0_1 to %c1_2 step %c1_2 {
                scf.for %i_3 = %c0_1 to %c1_2 step %c1_2 {
                  %0 = vector.transfer_read %accumulator_1[%hx, %hy, %i_2, %i_3, %c0_1, %c0_1], %f32_constant {in_bounds = [true, true]} : memref<1x1x1x1x8x8xf32, 2>, vector<8x8xf32>
                  %1 = vector.shape_cast %0 : vector<8x8xf32> to vector<64xf32>
                  %2 = scf.for %i_4 = %c0_1 to %c1_2 step %c1_2 iter_args(%3 = %1) -> (vector<64xf32>) {
                    %4 = vector.transfer_read %l1_a[%i_4, %i_3, %c0_1, %c0_1], %bf16_constant {in_bounds = [true, true]} : memref<1x1x8x8xbf16, 2>, vector<8x8xbf16>
                    %5 = vector.transfer_read %l1_b[%i_2, %i_4, %c0_1, %c0_1], %bf16_constant {in_bounds = [true, true]} : memref<1x1x8x8xbf16, 2>, vector<8x8xbf16>
                    %6 = vector.shape_cast %3 : vector<64xf32> to vector<8x8xf32>
                    %7 = vector.contract {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"], kind = #vector.kind<add>} %4, %5, %6 : vector<8x8xbf16>, vector<8x8xbf16> into vector<8x8xf32>
                    %8 = vector.shape_cast %7 : vector<8x8xf32> to vector<64xf32>
                    scf.yield %8 : vector<64xf32>
                  }
                  %9 = vector.shape_cast %2 : vector<64xf32> to vector<8x8xf32>
                  vector.transfer_write %9, %accumulator_1[%hx, %hy, %i_2, %i_3, %c0_1, %c0_1] {in_bounds = [true, true]} : vector<8x8xf32>, memref<1x1x1x1x8x8xf32, 2>
                }
              }
            }
            memref.dealloc %l1_a : memref<1x1x8x8xbf16, 2>
            memref.dealloc %l1_b : memref<1x1x8x8xbf16, 2>
          }
        }
        air.herd @gemm_herd tile (%hx, %hy) in (%hsx=%c1_1, %hsy=%c1_1) args(%l2_c_1=%l2_c, %accumulator_1=%accumulator) : memref<8x8xf32, 1>, memref<1x1x1x1x8x8xf32, 2> {
          %c0_1 = arith.constant 0 : index
          %c1_2 = arith.constant 1 : index
          %c8_1 = arith.constant 8 : index
          %c64 = arith.constant 64 : index
          %at_2 = affine.apply affine_map<()[s0] -> ((s0 * 8))> ()[%hx]
          %at_3 = affine.apply affine_map<()[s0] -> ((s0 * 8))> ()[%hy]
          air.dma_memcpy_nd (%l2_c_1[%c0_1, %c0_1, %at_2, %at_3] [%c1_2, %c1_2, %c8_1, %c8_1] [%c8_1, %c64, %c8_1, %c1_2], %accumulator_1[%hx, %hy, %c0_1, %c0_1, %c0_1, %c0_1] [%c1_2, %c1_2, %c1_2, %c1_2, %c8_1, %c8_1] [%c64, %c64, %c64, %c64, %c8_1, %c1_2]) : (memref<8x8xf32, 1>, memref<1x1x1x1x8x8xf32, 2>)
        }
        %at_2 = affine.apply affine_map<()[s0] -> ((s0 * 8))> ()[%ly_1]
        %at_3 = affine.apply affine_map<()[s0] -> ((s0 * 8))> ()[%lx_1]
        air.dma_memcpy_nd (%c_2[%at_2, %at_3] [%c8, %c8] [%c8, %c1_1], %l2_c[] [] []) : (memref<8x8xf32>, memref<8x8xf32, 1>)
        memref.dealloc %l2_a : memref<8x8xbf16, 1>
        memref.dealloc %l2_b : memref<8x8xbf16, 1>
        memref.dealloc %l2_c : memref<8x8xf32, 1>
        memref.dealloc %accumulator : memref<1x1x1x1x8x8xf32, 2>
      }
    }
    func.return
  }
}
