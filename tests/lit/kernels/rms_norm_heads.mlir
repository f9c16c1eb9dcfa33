// Norms of heads: the 32 heads of eight rows are what eight cores share.
// RUN: %kernels show rms_norm --rows=8 --cols=64 --heads=4 | %golden %s
builtin.module {
  func.func private @round_to_even_f32_16(memref<16xf32, 2>) -> () attributes {link_with = "round_to_even_f32_16.o", link_source = "round_to_even.cc", link_defines = "round_to_even=round_to_even_f32_16", llvm.emit_c_interface}
  func.func @rms_norm(%x: memref<8x256xbf16>, %weight: memref<64xbf16>, %out: memref<8x256xbf16>) {
    air.launch () in () args(%weight_1=%weight, %x_1=%x, %out_1=%out) : memref<64xbf16>, memref<8x256xbf16>, memref<8x256xbf16> {
      air.segment @rms_norm_segment args(%weight_2=%weight_1, %x_2=%x_1, %out_2=%out_1) : memref<64xbf16>, memref<8x256xbf16>, memref<8x256xbf16> {
        %c8 = arith.constant 8 : index
        %c1 = arith.constant 1 : index
        air.herd @rms_norm_herd tile (%hx, %hy) in (%hsx=%c8, %hsy=%c1) args(%weight_3=%weight_2, %x_3=%x_2, %out_3=%out_2) : memref<64xbf16>, memref<8x256xbf16>, memref<8x256xbf16> {
          %f32_vector = arith.constant dense<0.000000e+00> : vector<16xf32>
          %c0 = arith.constant 0 : index
          %c2 = arith.constant 2 : index
          %c1_1 = arith.constant 1 : index
          %bf16_vector = arith.constant dense<-1.000000e+00> : vector<16xbf16>
          %c4 = arith.constant 4 : index
          %c64 = arith.constant 64 : index
          %c16 = arith.constant 16 : index
          %bf16_constant = arith.constant 0.000000e+00 : bf16
          %f32_constant = arith.constant 0.000000e+00 : f32
          %f32_constant_1 = arith.constant 1.562500e-02 : f32
          %f32_constant_2 = arith.constant 1.000000e-05 : f32
          %l1_weight = memref.alloc() : memref<64xbf16, 2>
          %l1_x = memref.alloc() : memref<4x64xbf16, 2>
          %l1_out = memref.alloc() : memref<4x64xbf16, 2>
          %l1_sums = memref.alloc() : memref<16xf32, 2>
          %l1_minus_one = memref.alloc() : memref<2x16xbf16, 2>
          func.call @round_to_even_f32_16(%l1_sums) : (memref<16xf32, 2>) -> ()
          vector.transfer_write %f32_vector, %l1_sums[%c0] {in_bounds = [true]} : vector<16xf32>, memref<16xf32, 2>
          scf.for %i = %c0 to %c2 step %c1_1 {
            vector.transfer_write %bf16_vector, %l1_minus_one[%i, %c0] {in_bounds = [true]} : vector<16xbf16>, memref<2x16xbf16, 2>
          }
          air.dma_memcpy_nd (%l1_weight[] [] [], %weight_3[] [] []) : (memref<64xbf16, 2>, memref<64xbf16>)
          %at = affine.apply affine_map<()[s0] -> ((s0 * 4))> ()[%hx]
          air.dma_memcpy_nd (%l1_x[] [] [], %x_3[%at, %c0] [%c4, %c64] [%c64, %c1_1]) : (memref<4x64xbf16, 2>, memref<8x256xbf16>)
          scf.for %i_1 = %c0 to %c4 step %c1_1 {
            scf.for %i_2 = %c0 to %c64 step %c16 {
              %0 = vector.transfer_read %l1_x[%i_1, %i_2], %bf16_constant {in_bounds = [true]} : memref<4x64xbf16, 2>, vector<16xbf16>
              %1 = arith.extf %0 : vector<16xbf16> to vector<16xf32>
              %2 = vector.transfer_read %l1_sums[%c0], %f32_constant {in_bounds = [true]} : memref<16xf32, 2>, vector<16xf32>
              %3 = vector.fma %1, %1, %2 : vector<16xf32>
              vector.transfer_write %3, %l1_sums[%c0] {in_bounds = [true]} : vector<16xf32>, memref<16xf32, 2>
            }
            %4 = vector.transfer_read %l1_sums[%c0], %f32_constant {in_bounds = [true]} : memref<16xf32, 2>, vector<16xf32>
            %5 = vector.reduction <add>, %4 : vector<16xf32> into f32
            %6 = arith.mulf %5, %f32_constant_1 : f32
            vector.transfer_write %f32_vector, %l1_sums[%c0] {in_bounds = [true]} : vector<16xf32>, memref<16xf32, 2>
            %7 = arith.addf %6, %f32_constant_2 : f32
            %8 = math.rsqrt %7 : f32
            %9 = vector.broadcast %8 : f32 to vector<16xf32>
            %10 = vector.transfer_read %l1_minus_one[%c0, %c0], %bf16_constant {in_bounds = [true]} : memref<2x16xbf16, 2>, vector<16xbf16>
            %11 = arith.extf %10 : vector<16xbf16> to vector<16xf32>
            %12 = arith.truncf %9 : vector<16xf32> to vector<16xbf16>
            %13 = arith.extf %12 : vector<16xbf16> to vector<16xf32>
            %14 = vector.fma %13, %11, %9 : vector<16xf32>
            %15 = arith.truncf %14 : vector<16xf32> to vector<16xbf16>
            %16 = arith.extf %15 : vector<16xbf16> to vector<16xf32>
            %17 = vector.fma %16, %11, %14 : vector<16xf32>
            %18 = arith.truncf %17 : vector<16xf32> to vector<16xbf16>
            scf.for %i_3 = %c0 to %c64 step %c16 {
              %19 = vector.transfer_read %l1_x[%i_1, %i_3], %bf16_constant {in_bounds = [true]} : memref<4x64xbf16, 2>, vector<16xbf16>
              %20 = arith.extf %19 : vector<16xbf16> to vector<16xf32>
              %21 = arith.extf %18 : vector<16xbf16> to vector<16xf32>
              %22 = vector.fma %20, %21, %f32_vector : vector<16xf32>
              %23 = arith.extf %15 : vector<16xbf16> to vector<16xf32>
              %24 = vector.fma %20, %23, %22 : vector<16xf32>
              %25 = arith.extf %12 : vector<16xbf16> to vector<16xf32>
              %26 = vector.fma %20, %25, %24 : vector<16xf32>
              %27 = arith.truncf %26 : vector<16xf32> to vector<16xbf16>
              %28 = vector.transfer_read %l1_weight[%i_3], %bf16_constant {in_bounds = [true]} : memref<64xbf16, 2>, vector<16xbf16>
              %29 = arith.mulf %27, %28 : vector<16xbf16>
              vector.transfer_write %29, %l1_out[%i_1, %i_3] {in_bounds = [true]} : vector<16xbf16>, memref<4x64xbf16, 2>
            }
          }
          air.dma_memcpy_nd (%out_3[%at, %c0] [%c4, %c64] [%c64, %c1_1], %l1_out[] [] []) : (memref<8x256xbf16>, memref<4x64xbf16, 2>)
          memref.dealloc %l1_weight : memref<64xbf16, 2>
          memref.dealloc %l1_x : memref<4x64xbf16, 2>
          memref.dealloc %l1_out : memref<4x64xbf16, 2>
          memref.dealloc %l1_sums : memref<16xf32, 2>
          memref.dealloc %l1_minus_one : memref<2x16xbf16, 2>
        }
      }
    }
    func.return
  }
}
