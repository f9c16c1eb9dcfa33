// Every loop of the product runs more than once.
// RUN: %kernels show gemm --m=32 --k=64 --n=64 --tile-k-l2=32 --tile-k-l1=16 | %golden %s
builtin.module {
  func.func @gemm(%a: memref<32x64xbf16>, %b: memref<64x64xbf16>, %c: memref<32x64xbf16>) {
    %c1 = arith.constant 1 : index
    air.launch (%lx, %ly) in (%lsx=%c1, %lsy=%c1) args(%a_1=%a, %b_1=%b, %c_1=%c) : memref<32x64xbf16>, memref<64x64xbf16>, memref<32x64xbf16> {
      air.segment @gemm_segment args(%a_2=%a_1, %ly_1=%ly, %b_2=%b_1, %lx_1=%lx, %c_2=%c_1) : memref<32x64xbf16>, index, memref<64x64xbf16>, index, memref<32x64xbf16> {
        %c4 = arith.constant 4 : index
        %c0 = arith.constant 0 : index
        %c64 = arith.constant 64 : index
        %c32 = arith.constant 32 : index
        %c1_1 = arith.constant 1 : index
        %l2_a = memref.alloc() : memref<32x32xbf16, 1>
        %l2_b = memref.alloc() : memref<32x64xbf16, 1>
        %l2_c = memref.alloc() : memref<32x64xbf16, 1>
        %accumulator = memref.alloc() : memref<4x4x2x1x8x8xf32, 2>
        air.herd @gemm_herd tile (%hx, %hy) in (%hsx=%c4, %hsy=%c4) args(%accumulator_1=%accumulator) : memref<4x4x2x1x8x8xf32, 2> {
          %f32_vector = arith.constant dense<0.000000e+00> : vector<8x8xf32>
          %c0_1 = arith.constant 0 : index
          %c2 = arith.constant 2 : index
          %c1_2 = arith.constant 1 : index
          scf.for %i = %c0_1 to %c2 step %c1_2 {
            scf.for %i_1 = %c0_1 to %c1_2 step %c1_2 {
              vector.transfer_write %f32_vector, %accumulator_1[%hx, %hy, %i, %i_1, %c0_1, %c0_1] {in_bounds = [true, true]} : vector<8x8xf32>, memref<4x4x2x1x8x8xf32, 2>
            }
          }
        }
        scf.for %i = %c0 to %c64 step %c32 {
          %at = affine.apply affine_map<()[s0] -> ((s0 * 32))> ()[%ly_1]
          air.dma_memcpy_nd (%l2_a[] [] [], %a_2[%at, %i] [%c32, %c32] [%c64, %c1_1]) : (memref<32x32xbf16, 1>, memref<32x64xbf16>)
          %at_1 = affine.apply affine_map<()[s0] -> ((s0 * 64))> ()[%lx_1]
          air.dma_memcpy_nd (%l2_b[] [] [], %b_2[%i, %at_1] [%c32, %c64] [%c64, %c1_1]) : (memref<32x64xbf16, 1>, memref<64x64xbf16>)
          air.herd @gemm_herd tile (%hx, %hy) in (%hsx=%c4, %hsy=%c4) args(%l2_a_1=%l2_a, %l2_b_1=%l2_b, %accumulator_1=%accumulator) : memref<32x32xbf16, 1>, memref<32x64xbf16, 1>, memref<4x4x2x1x8x8xf32, 2> {
            %c0_1 = arith.constant 0 : index
            %c32_1 = arith.constant 32 : index
            %c16 = arith.constant 16 : index
            %c2 = arith.constant 2 : index
            %c1_2 = arith.constant 1 : index
            %c8 = arith.constant 8 : index
            %c256 = arith.constant 256 : index
            %c512 = arith.constant 512 : index
            %c64_1 = arith.constant 64 : index
            %f32_constant = arith.constant 0.000000e+00 : f32
            %bf16_constant = arith.constant 0.000000e+00 : bf16
            %l1_a = memref.alloc() : memref<2x1x8x8xbf16, 2>
            %l1_b = memref.alloc() : memref<2x2x8x8xbf16, 2>
            scf.for %i_1 = %c0_1 to %c32_1 step %c16 {
              %at_2 = affine.apply affine_map<()[s0] -> ((s0 * 8))> ()[%hx]
              air.dma_memcpy_nd (%l1_a[] [] [], %l2_a_1[%c0_1, %c0_1, %at_2, %i_1] [%c2, %c1_2, %c8, %c8] [%c8, %c256, %c32_1, %c1_2]) : (memref<2x1x8x8xbf16, 2>, memref<32x32xbf16, 1>)
              %at_3 = affine.apply affine_map<()[s0] -> ((s0 * 16))> ()[%hy]
              air.dma_memcpy_nd (%l1_b[] [] [], %l2_b_1[%c0_1, %c0_1, %i_1, %at_3] [%c2, %c2, %c8, %c8] [%c8, %c512, %c64_1, %c1_2]) : (memref<2x2x8x8xbf16, 2>, memref<32x64xbf16, 1>)
              scf.for %i_2 = %c0_1 to %c2 step %c2 {
                scf.for %i_3 = %c0_1 to %c1_2 step %c1_2 {
                  %0 = vector.transfer_read %accumulator_1[%hx, %hy, %i_2, %i_3, %c0_1, %c0_1], %f32_constant {in_bounds = [true, true]} : memref<4x4x2x1x8x8xf32, 2>, vector<8x8xf32>
                  %1 = vector.shape_cast %0 : vector<8x8xf32> to vector<64xf32>
                  %at_4 = affine.apply affine_map<()[s0] -> ((s0 + 1))> ()[%i_2]
                  %2 = vector.transfer_read %accumulator_1[%hx, %hy, %at_4, %i_3, %c0_1, %c0_1], %f32_constant {in_bounds = [true, true]} : memref<4x4x2x1x8x8xf32, 2>, vector<8x8xf32>
                  %3 = vector.shape_cast %2 : vector<8x8xf32> to vector<64xf32>
                  %4, %5 = scf.for %i_4 = %c0_1 to %c2 step %c1_2 iter_args(%6 = %1, %7 = %3) -> (vector<64xf32>, vector<64xf32>) {
                    %8 = vector.transfer_read %l1_a[%i_4, %i_3, %c0_1, %c0_1], %bf16_constant {in_bounds = [true, true]} : memref<2x1x8x8xbf16, 2>, vector<8x8xbf16>
                    %9 = vector.transfer_read %l1_b[%i_2, %i_4, %c0_1, %c0_1], %bf16_constant {in_bounds = [true, true]} : memref<2x2x8x8xbf16, 2>, vector<8x8xbf16>
                    %10 = vector.transfer_read %l1_b[%at_4, %i_4, %c0_1, %c0_1], %bf16_constant {in_bounds = [true, true]} : memref<2x2x8x8xbf16, 2>, vector<8x8xbf16>
                    %11 = vector.shape_cast %6 : vector<64xf32> to vector<8x8xf32>
                    %12 = vector.contract {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"], kind = #vector.kind<add>} %8, %9, %11 : vector<8x8xbf16>, vector<8x8xbf16> into vector<8x8xf32>
                    %13 = vector.shape_cast %12 : vector<8x8xf32> to vector<64xf32>
                    %14 = vector.shape_cast %7 : vector<64xf32> to vector<8x8xf32>
                    %15 = vector.contract {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"], kind = #vector.kind<add>} %8, %10, %14 : vector<8x8xbf16>, vector<8x8xbf16> into vector<8x8xf32>
                    %16 = vector.shape_cast %15 : vector<8x8xf32> to vector<64xf32>
                    scf.yield %13, %16 : vector<64xf32>, vector<64xf32>
                  }
                  %17 = vector.shape_cast %4 : vector<64xf32> to vector<8x8xf32>
                  vector.transfer_write %17, %accumulator_1[%hx, %hy, %i_2, %i_3, %c0_1, %c0_1] {in_bounds = [true, true]} : vector<8x8xf32>, memref<4x4x2x1x8x8xf32, 2>
                  %18 = vector.shape_cast %5 : vector<64xf32> to vector<8x8xf32>
                  vector.transfer_write %18, %accumulator_1[%hx, %hy, %at_4, %i_3, %c0_1, %c0_1] {in_bounds = [true, true]} : vector<8x8xf32>, memref<4x4x2x1x8x8xf32, 2>
                }
              }
            }
            memref.dealloc %l1_a : memref<2x1x8x8xbf16, 2>
            memref.dealloc %l1_b : memref<2x2x8x8xbf16, 2>
          }
        }
        air.herd @gemm_herd tile (%hx, %hy) in (%hsx=%c4, %hsy=%c4) args(%accumulator_1=%accumulator, %l2_c_1=%l2_c) : memref<4x4x2x1x8x8xf32, 2>, memref<32x64xbf16, 1> {
          %c0_1 = arith.constant 0 : index
          %c2 = arith.constant 2 : index
          %c1_2 = arith.constant 1 : index
          %f32_constant = arith.constant 0.000000e+00 : f32
          %c8 = arith.constant 8 : index
          %c16 = arith.constant 16 : index
          %c64_1 = arith.constant 64 : index
          %rounded = memref.alloc() : memref<2x1x8x8xbf16, 2>
          scf.for %i_1 = %c0_1 to %c2 step %c1_2 {
            scf.for %i_2 = %c0_1 to %c1_2 step %c1_2 {
              %0 = vector.transfer_read %accumulator_1[%hx, %hy, %i_1, %i_2, %c0_1, %c0_1], %f32_constant {in_bounds = [true, true]} : memref<4x4x2x1x8x8xf32, 2>, vector<8x8xf32>
              %1 = arith.truncf %0 : vector<8x8xf32> to vector<8x8xbf16>
              vector.transfer_write %1, %rounded[%i_1, %i_2, %c0_1, %c0_1] {in_bounds = [true, true]} : vector<8x8xbf16>, memref<2x1x8x8xbf16, 2>
            }
          }
          %at_2 = affine.apply affine_map<()[s0] -> ((s0 * 8))> ()[%hx]
          %at_3 = affine.apply affine_map<()[s0] -> ((s0 * 16))> ()[%hy]
          air.dma_memcpy_nd (%l2_c_1[%at_2, %at_3] [%c8, %c16] [%c64_1, %c1_2], %rounded[%c0_1, %c0_1, %c0_1] [%c8, %c2, %c8] [%c8, %c64_1, %c1_2]) : (memref<32x64xbf16, 1>, memref<2x1x8x8xbf16, 2>)
          memref.dealloc %rounded : memref<2x1x8x8xbf16, 2>
        }
        %at_2 = affine.apply affine_map<()[s0] -> ((s0 * 32))> ()[%ly_1]
        %at_3 = affine.apply affine_map<()[s0] -> ((s0 * 64))> ()[%lx_1]
        air.dma_memcpy_nd (%c_2[%at_2, %at_3] [%c32, %c64] [%c64, %c1_1], %l2_c[] [] []) : (memref<32x64xbf16>, memref<32x64xbf16, 1>)
        memref.dealloc %l2_a : memref<32x32xbf16, 1>
        memref.dealloc %l2_b : memref<32x64xbf16, 1>
        memref.dealloc %l2_c : memref<32x64xbf16, 1>
        memref.dealloc %accumulator : memref<4x4x2x1x8x8xf32, 2>
      }
    }
    func.return
  }
}
