// A kernel stitched with itself: its channels, its helper function and its constant, once per launch.
// RUN: %python %S/../support/stitch_twice.py %project/tests/multi_launch_builder/texts/double.mlir | %golden %s
builtin.module {
  air.channel @first_in [2, 1]
  air.channel @first_out [2, 1] {channel_type = "npu_dma_stream"}
  memref.global "private" constant @first_two : memref<1xbf16, 2> = dense<2.000000e+00>
  func.func private @first_times(%v: bf16, %f: bf16) -> bf16 {
    %0 = arith.mulf %v, %f : bf16
    func.return %0 : bf16
  }
  air.channel @second_in [2, 1]
  air.channel @second_out [2, 1] {channel_type = "npu_dma_stream"}
  memref.global "private" constant @second_two : memref<1xbf16, 2> = dense<2.000000e+00>
  func.func private @second_times(%v: bf16, %f: bf16) -> bf16 {
    %0 = arith.mulf %v, %f : bf16
    func.return %0 : bf16
  }
  func.func @twice(%x: memref<128xbf16>, %mid: memref<128xbf16>, %y: memref<128xbf16>) {
    air.launch @first () in () args(%lx=%x, %ly=%mid) : memref<128xbf16>, memref<128xbf16> {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c64 = arith.constant 64 : index
      %o = affine.apply affine_map<()[s0] -> ((s0 * 64))> ()[%c1]
      air.channel.put @first_in[%c0, %c0] (%lx[%c0] [%c64] [%c1]) : (memref<128xbf16>)
      air.channel.put @first_in[%c1, %c0] (%lx[%o] [%c64] [%c1]) : (memref<128xbf16>)
      air.segment @first_s {
        %c2 = arith.constant 2 : index
        %c1_1 = arith.constant 1 : index
        air.herd @first_h tile (%tx, %ty) in (%sx=%c2, %sy=%c1_1) {
          %unused = memref.alloc() : memref<64xbf16, 2>
        }
        air.herd @first_h tile (%tx, %ty) in (%sx=%c2, %sy=%c1_1) {
          %c0_1 = arith.constant 0 : index
          %c1_2 = arith.constant 1 : index
          %c64_1 = arith.constant 64 : index
          %two = memref.get_global @first_two : memref<1xbf16, 2>
          %f = memref.load %two[%c0_1] : memref<1xbf16, 2>
          %b = memref.alloc() : memref<64xbf16, 2>
          air.channel.get @first_in[%tx, %ty] (%b[] [] []) : (memref<64xbf16, 2>)
          scf.for %e = %c0_1 to %c64_1 step %c1_2 {
            %v = memref.load %b[%e] : memref<64xbf16, 2>
            %w = func.call @first_times(%v, %f) : (bf16, bf16) -> bf16
            memref.store %w, %b[%e] : memref<64xbf16, 2>
          }
          air.channel.put @first_out[%tx, %ty] (%b[] [] []) : (memref<64xbf16, 2>)
          memref.dealloc %b : memref<64xbf16, 2>
        }
      }
      air.channel.get @first_out[%c0, %c0] (%ly[%c0] [%c64] [%c1]) : (memref<128xbf16>)
      air.channel.get @first_out[%c1, %c0] (%ly[%o] [%c64] [%c1]) : (memref<128xbf16>)
    }
    air.launch @second () in () args(%lx=%mid, %ly=%y) : memref<128xbf16>, memref<128xbf16> {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c64 = arith.constant 64 : index
      %o = affine.apply affine_map<()[s0] -> ((s0 * 64))> ()[%c1]
      air.channel.put @second_in[%c0, %c0] (%lx[%c0] [%c64] [%c1]) : (memref<128xbf16>)
      air.channel.put @second_in[%c1, %c0] (%lx[%o] [%c64] [%c1]) : (memref<128xbf16>)
      air.segment @second_s {
        %c2 = arith.constant 2 : index
        %c1_1 = arith.constant 1 : index
        air.herd @second_h tile (%tx, %ty) in (%sx=%c2, %sy=%c1_1) {
          %unused = memref.alloc() : memref<64xbf16, 2>
        }
        air.herd @second_h tile (%tx, %ty) in (%sx=%c2, %sy=%c1_1) {
          %c0_1 = arith.constant 0 : index
          %c1_2 = arith.constant 1 : index
          %c64_1 = arith.constant 64 : index
          %two = memref.get_global @second_two : memref<1xbf16, 2>
          %f = memref.load %two[%c0_1] : memref<1xbf16, 2>
          %b = memref.alloc() : memref<64xbf16, 2>
          air.channel.get @second_in[%tx, %ty] (%b[] [] []) : (memref<64xbf16, 2>)
          scf.for %e = %c0_1 to %c64_1 step %c1_2 {
            %v = memref.load %b[%e] : memref<64xbf16, 2>
            %w = func.call @second_times(%v, %f) : (bf16, bf16) -> bf16
            memref.store %w, %b[%e] : memref<64xbf16, 2>
          }
          air.channel.put @second_out[%tx, %ty] (%b[] [] []) : (memref<64xbf16, 2>)
          memref.dealloc %b : memref<64xbf16, 2>
        }
      }
      air.channel.get @second_out[%c0, %c0] (%ly[%c0] [%c64] [%c1]) : (memref<128xbf16>)
      air.channel.get @second_out[%c1, %c0] (%ly[%o] [%c64] [%c1]) : (memref<128xbf16>)
    }
    func.return
  }
}
