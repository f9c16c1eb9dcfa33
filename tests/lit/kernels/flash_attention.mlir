// One tile of queries, two heads on one KV head, causal.
// RUN: %kernels show flash_attention --lq=128 --lk=128 --n-heads=2 --n-kv-heads=1 --head-dim=64 | %golden %s
builtin.module {
  air.channel @q_in_0 [1] {channel_type = "npu_dma_stream", air.shim_col = 0 : i32}
  air.channel @q_in_1 [1] {channel_type = "npu_dma_stream", air.shim_col = 1 : i32}
  air.channel @q_in_2 [1] {channel_type = "npu_dma_stream", air.shim_col = 2 : i32}
  air.channel @q_in_3 [1] {channel_type = "npu_dma_stream", air.shim_col = 3 : i32}
  air.channel @q_in_4 [1] {channel_type = "npu_dma_stream", air.shim_col = 4 : i32}
  air.channel @q_in_5 [1] {channel_type = "npu_dma_stream", air.shim_col = 5 : i32}
  air.channel @q_in_6 [1] {channel_type = "npu_dma_stream", air.shim_col = 6 : i32}
  air.channel @q_in_7 [1] {channel_type = "npu_dma_stream", air.shim_col = 7 : i32}
  air.channel @k_in_0 [1] {channel_type = "npu_dma_stream", air.shim_col = 0 : i32}
  air.channel @k_in_1 [1] {channel_type = "npu_dma_stream", air.shim_col = 1 : i32}
  air.channel @v_in_0 [1] {channel_type = "npu_dma_stream", air.shim_col = 2 : i32}
  air.channel @v_in_1 [1] {channel_type = "npu_dma_stream", air.shim_col = 3 : i32}
  air.channel @q_l1 [8, 1] {channel_type = "npu_dma_stream", broadcast_shape = [8, 2]}
  air.channel @kv_l1 [1, 2] {channel_type = "npu_dma_stream", broadcast_shape = [8, 2]}
  air.channel @partial [8, 1] {channel_type = "npu_cascade"}
  air.channel @out_l2 [8] {channel_type = "npu_dma_stream"}
  air.channel @out_l3_0 [1] {channel_type = "npu_dma_stream", air.shim_col = 0 : i32}
  air.channel @out_l3_1 [1] {channel_type = "npu_dma_stream", air.shim_col = 1 : i32}
  air.channel @out_l3_2 [1] {channel_type = "npu_dma_stream", air.shim_col = 2 : i32}
  air.channel @out_l3_3 [1] {channel_type = "npu_dma_stream", air.shim_col = 3 : i32}
  air.channel @out_l3_4 [1] {channel_type = "npu_dma_stream", air.shim_col = 4 : i32}
  air.channel @out_l3_5 [1] {channel_type = "npu_dma_stream", air.shim_col = 5 : i32}
  air.channel @out_l3_6 [1] {channel_type = "npu_dma_stream", air.shim_col = 6 : i32}
  air.channel @out_l3_7 [1] {channel_type = "npu_dma_stream", air.shim_col = 7 : i32}
  func.func private @attn_init_16x64x64(memref<1024xf32, 2>, memref<64xf32, 2>) -> () attributes {link_with = "attn_16x64x64.o", link_source = "attn_npu2.cc", link_defines = "ATTN_Q_ROWS=16 ATTN_KV_ROWS=64 ATTN_HEAD_DIM=64 attn_init=attn_init_16x64x64 attn_scores=attn_scores_16x64x64 attn_causal_mask=attn_causal_mask_16x64x64 attn_softmax=attn_softmax_16x64x64 attn_values=attn_values_16x64x64 attn_merge=attn_merge_16x64x64 attn_store=attn_store_16x64x64", link_optimize = "O2", llvm.emit_c_interface}
  func.func private @attn_scores_16x64x64(memref<1024xbf16, 2>, memref<4096xbf16, 2>, memref<1024xf32, 2>) -> () attributes {link_with = "attn_16x64x64.o", link_source = "attn_npu2.cc", link_defines = "ATTN_Q_ROWS=16 ATTN_KV_ROWS=64 ATTN_HEAD_DIM=64 attn_init=attn_init_16x64x64 attn_scores=attn_scores_16x64x64 attn_causal_mask=attn_causal_mask_16x64x64 attn_softmax=attn_softmax_16x64x64 attn_values=attn_values_16x64x64 attn_merge=attn_merge_16x64x64 attn_store=attn_store_16x64x64", link_optimize = "O2", llvm.emit_c_interface}
  func.func private @attn_causal_mask_16x64x64(memref<1024xf32, 2>, i32, i32) -> () attributes {link_with = "attn_16x64x64.o", link_source = "attn_npu2.cc", link_defines = "ATTN_Q_ROWS=16 ATTN_KV_ROWS=64 ATTN_HEAD_DIM=64 attn_init=attn_init_16x64x64 attn_scores=attn_scores_16x64x64 attn_causal_mask=attn_causal_mask_16x64x64 attn_softmax=attn_softmax_16x64x64 attn_values=attn_values_16x64x64 attn_merge=attn_merge_16x64x64 attn_store=attn_store_16x64x64", link_optimize = "O2", llvm.emit_c_interface}
  func.func private @attn_softmax_16x64x64(memref<1024xf32, 2>, memref<1024xbf16, 2>, memref<64xf32, 2>, memref<1024xf32, 2>) -> () attributes {link_with = "attn_16x64x64.o", link_source = "attn_npu2.cc", link_defines = "ATTN_Q_ROWS=16 ATTN_KV_ROWS=64 ATTN_HEAD_DIM=64 attn_init=attn_init_16x64x64 attn_scores=attn_scores_16x64x64 attn_causal_mask=attn_causal_mask_16x64x64 attn_softmax=attn_softmax_16x64x64 attn_values=attn_values_16x64x64 attn_merge=attn_merge_16x64x64 attn_store=attn_store_16x64x64", link_optimize = "O2", llvm.emit_c_interface}
  func.func private @attn_values_16x64x64(memref<1024xbf16, 2>, memref<4096xbf16, 2>, memref<1024xf32, 2>) -> () attributes {link_with = "attn_16x64x64.o", link_source = "attn_npu2.cc", link_defines = "ATTN_Q_ROWS=16 ATTN_KV_ROWS=64 ATTN_HEAD_DIM=64 attn_init=attn_init_16x64x64 attn_scores=attn_scores_16x64x64 attn_causal_mask=attn_causal_mask_16x64x64 attn_softmax=attn_softmax_16x64x64 attn_values=attn_values_16x64x64 attn_merge=attn_merge_16x64x64 attn_store=attn_store_16x64x64", link_optimize = "O2", llvm.emit_c_interface}
  func.func private @attn_merge_16x64x64(memref<1024xf32, 2>, memref<64xf32, 2>, memref<1024xf32, 2>, memref<64xf32, 2>) -> () attributes {link_with = "attn_16x64x64.o", link_source = "attn_npu2.cc", link_defines = "ATTN_Q_ROWS=16 ATTN_KV_ROWS=64 ATTN_HEAD_DIM=64 attn_init=attn_init_16x64x64 attn_scores=attn_scores_16x64x64 attn_causal_mask=attn_causal_mask_16x64x64 attn_softmax=attn_softmax_16x64x64 attn_values=attn_values_16x64x64 attn_merge=attn_merge_16x64x64 attn_store=attn_store_16x64x64", link_optimize = "O2", llvm.emit_c_interface}
  func.func private @attn_store_16x64x64(memref<1024xf32, 2>, memref<64xf32, 2>, memref<1024xbf16, 2>) -> () attributes {link_with = "attn_16x64x64.o", link_source = "attn_npu2.cc", link_defines = "ATTN_Q_ROWS=16 ATTN_KV_ROWS=64 ATTN_HEAD_DIM=64 attn_init=attn_init_16x64x64 attn_scores=attn_scores_16x64x64 attn_causal_mask=attn_causal_mask_16x64x64 attn_softmax=attn_softmax_16x64x64 attn_values=attn_values_16x64x64 attn_merge=attn_merge_16x64x64 attn_store=attn_store_16x64x64", link_optimize = "O2", llvm.emit_c_interface}
  func.func @flash_attention(%q: memref<128x128xbf16>, %k: memref<128x64xbf16>, %v: memref<128x64xbf16>, %out: memref<128x128xbf16>) {
    %c2 = arith.constant 2 : index
    %c1 = arith.constant 1 : index
    air.launch (%lx, %ly) in (%lsx=%c2, %lsy=%c1) args(%q_1=%q, %out_1=%out, %k_1=%k, %v_1=%v) : memref<128x128xbf16>, memref<128x128xbf16>, memref<128x64xbf16>, memref<128x64xbf16> {
      %c0 = arith.constant 0 : index
      %c16 = arith.constant 16 : index
      %c64 = arith.constant 64 : index
      %c128 = arith.constant 128 : index
      %c1_1 = arith.constant 1 : index
      %at = affine.apply affine_map<()[s0] -> ((s0 * 128))> ()[%ly]
      %at_1 = affine.apply affine_map<()[s0] -> ((s0 * 64))> ()[%lx]
      air.channel.put @q_in_0[%c0] (%q_1[%at, %at_1] [%c16, %c64] [%c128, %c1_1]) : (memref<128x128xbf16>)
      air.channel.get @out_l3_0[%c0] (%out_1[%at, %at_1] [%c16, %c64] [%c128, %c1_1]) : (memref<128x128xbf16>)
      %at_2 = affine.apply affine_map<()[s0] -> (((s0 * 128) + 16))> ()[%ly]
      air.channel.put @q_in_1[%c0] (%q_1[%at_2, %at_1] [%c16, %c64] [%c128, %c1_1]) : (memref<128x128xbf16>)
      air.channel.get @out_l3_1[%c0] (%out_1[%at_2, %at_1] [%c16, %c64] [%c128, %c1_1]) : (memref<128x128xbf16>)
      %at_3 = affine.apply affine_map<()[s0] -> (((s0 * 128) + 32))> ()[%ly]
      air.channel.put @q_in_2[%c0] (%q_1[%at_3, %at_1] [%c16, %c64] [%c128, %c1_1]) : (memref<128x128xbf16>)
      air.channel.get @out_l3_2[%c0] (%out_1[%at_3, %at_1] [%c16, %c64] [%c128, %c1_1]) : (memref<128x128xbf16>)
      %at_4 = affine.apply affine_map<()[s0] -> (((s0 * 128) + 48))> ()[%ly]
      air.channel.put @q_in_3[%c0] (%q_1[%at_4, %at_1] [%c16, %c64] [%c128, %c1_1]) : (memref<128x128xbf16>)
      air.channel.get @out_l3_3[%c0] (%out_1[%at_4, %at_1] [%c16, %c64] [%c128, %c1_1]) : (memref<128x128xbf16>)
      %at_5 = affine.apply affine_map<()[s0] -> (((s0 * 128) + 64))> ()[%ly]
      air.channel.put @q_in_4[%c0] (%q_1[%at_5, %at_1] [%c16, %c64] [%c128, %c1_1]) : (memref<128x128xbf16>)
      air.channel.get @out_l3_4[%c0] (%out_1[%at_5, %at_1] [%c16, %c64] [%c128, %c1_1]) : (memref<128x128xbf16>)
      %at_6 = affine.apply affine_map<()[s0] -> (((s0 * 128) + 80))> ()[%ly]
      air.channel.put @q_in_5[%c0] (%q_1[%at_6, %at_1] [%c16, %c64] [%c128, %c1_1]) : (memref<128x128xbf16>)
      air.channel.get @out_l3_5[%c0] (%out_1[%at_6, %at_1] [%c16, %c64] [%c128, %c1_1]) : (memref<128x128xbf16>)
      %at_7 = affine.apply affine_map<()[s0] -> (((s0 * 128) + 96))> ()[%ly]
      air.channel.put @q_in_6[%c0] (%q_1[%at_7, %at_1] [%c16, %c64] [%c128, %c1_1]) : (memref<128x128xbf16>)
      air.channel.get @out_l3_6[%c0] (%out_1[%at_7, %at_1] [%c16, %c64] [%c128, %c1_1]) : (memref<128x128xbf16>)
      %at_8 = affine.apply affine_map<()[s0] -> (((s0 * 128) + 112))> ()[%ly]
      air.channel.put @q_in_7[%c0] (%q_1[%at_8, %at_1] [%c16, %c64] [%c128, %c1_1]) : (memref<128x128xbf16>)
      air.channel.get @out_l3_7[%c0] (%out_1[%at_8, %at_1] [%c16, %c64] [%c128, %c1_1]) : (memref<128x128xbf16>)
      scf.for %i = %c0 to %c1_1 step %c1_1 {
        %at_9 = affine.apply affine_map<()[s0] -> ((s0 * 128))> ()[%i]
        %at_10 = affine.apply affine_map<()[s0] -> (((s0 floordiv 2) * 64))> ()[%lx]
        air.channel.put @k_in_0[%c0] (%k_1[%at_9, %at_10] [%c64, %c64] [%c64, %c1_1]) : (memref<128x64xbf16>)
      }
      scf.for %i_1 = %c0 to %c1_1 step %c1_1 {
        %at_11 = affine.apply affine_map<()[s0] -> ((s0 * 128))> ()[%i_1]
        %at_12 = affine.apply affine_map<()[s0] -> (((s0 floordiv 2) * 64))> ()[%lx]
        air.channel.put @v_in_0[%c0] (%v_1[%at_11, %at_12] [%c64, %c64] [%c64, %c1_1]) : (memref<128x64xbf16>)
      }
      scf.for %i_2 = %c0 to %c1_1 step %c1_1 {
        %at_13 = affine.apply affine_map<()[s0] -> (((s0 * 128) + 64))> ()[%i_2]
        %at_14 = affine.apply affine_map<()[s0] -> (((s0 floordiv 2) * 64))> ()[%lx]
        air.channel.put @k_in_1[%c0] (%k_1[%at_13, %at_14] [%c64, %c64] [%c64, %c1_1]) : (memref<128x64xbf16>)
      }
      scf.for %i_3 = %c0 to %c1_1 step %c1_1 {
        %at_15 = affine.apply affine_map<()[s0] -> (((s0 * 128) + 64))> ()[%i_3]
        %at_16 = affine.apply affine_map<()[s0] -> (((s0 floordiv 2) * 64))> ()[%lx]
        air.channel.put @v_in_1[%c0] (%v_1[%at_15, %at_16] [%c64, %c64] [%c64, %c1_1]) : (memref<128x64xbf16>)
      }
      air.segment @attention_segment args(%ly_1=%ly) : index {
        %c0_1 = arith.constant 0 : index
        %c8 = arith.constant 8 : index
        %c16_1 = arith.constant 16 : index
        %c64_1 = arith.constant 64 : index
        %c1_2 = arith.constant 1 : index
        %c2_1 = arith.constant 2 : index
        %c3 = arith.constant 3 : index
        %c4 = arith.constant 4 : index
        %c5 = arith.constant 5 : index
        %c6 = arith.constant 6 : index
        %c7 = arith.constant 7 : index
        %l2_q = memref.alloc() : memref<16x64xbf16, 1>
        air.channel.get @q_in_0[%c0_1] (%l2_q[] [] []) : (memref<16x64xbf16, 1>)
        air.channel.put @q_l1[%c0_1, %c0_1] (%l2_q[%c0_1, %c0_1, %c0_1] [%c8, %c16_1, %c8] [%c8, %c64_1, %c1_2]) : (memref<16x64xbf16, 1>)
        %l2_q_1 = memref.alloc() : memref<16x64xbf16, 1>
        air.channel.get @q_in_1[%c0_1] (%l2_q_1[] [] []) : (memref<16x64xbf16, 1>)
        air.channel.put @q_l1[%c1_2, %c0_1] (%l2_q_1[%c0_1, %c0_1, %c0_1] [%c8, %c16_1, %c8] [%c8, %c64_1, %c1_2]) : (memref<16x64xbf16, 1>)
        %l2_q_2 = memref.alloc() : memref<16x64xbf16, 1>
        air.channel.get @q_in_2[%c0_1] (%l2_q_2[] [] []) : (memref<16x64xbf16, 1>)
        air.channel.put @q_l1[%c2_1, %c0_1] (%l2_q_2[%c0_1, %c0_1, %c0_1] [%c8, %c16_1, %c8] [%c8, %c64_1, %c1_2]) : (memref<16x64xbf16, 1>)
        %l2_q_3 = memref.alloc() : memref<16x64xbf16, 1>
        air.channel.get @q_in_3[%c0_1] (%l2_q_3[] [] []) : (memref<16x64xbf16, 1>)
        air.channel.put @q_l1[%c3, %c0_1] (%l2_q_3[%c0_1, %c0_1, %c0_1] [%c8, %c16_1, %c8] [%c8, %c64_1, %c1_2]) : (memref<16x64xbf16, 1>)
        %l2_q_4 = memref.alloc() : memref<16x64xbf16, 1>
        air.channel.get @q_in_4[%c0_1] (%l2_q_4[] [] []) : (memref<16x64xbf16, 1>)
        air.channel.put @q_l1[%c4, %c0_1] (%l2_q_4[%c0_1, %c0_1, %c0_1] [%c8, %c16_1, %c8] [%c8, %c64_1, %c1_2]) : (memref<16x64xbf16, 1>)
        %l2_q_5 = memref.alloc() : memref<16x64xbf16, 1>
        air.channel.get @q_in_5[%c0_1] (%l2_q_5[] [] []) : (memref<16x64xbf16, 1>)
        air.channel.put @q_l1[%c5, %c0_1] (%l2_q_5[%c0_1, %c0_1, %c0_1] [%c8, %c16_1, %c8] [%c8, %c64_1, %c1_2]) : (memref<16x64xbf16, 1>)
        %l2_q_6 = memref.alloc() : memref<16x64xbf16, 1>
        air.channel.get @q_in_6[%c0_1] (%l2_q_6[] [] []) : (memref<16x64xbf16, 1>)
        air.channel.put @q_l1[%c6, %c0_1] (%l2_q_6[%c0_1, %c0_1, %c0_1] [%c8, %c16_1, %c8] [%c8, %c64_1, %c1_2]) : (memref<16x64xbf16, 1>)
        %l2_q_7 = memref.alloc() : memref<16x64xbf16, 1>
        air.channel.get @q_in_7[%c0_1] (%l2_q_7[] [] []) : (memref<16x64xbf16, 1>)
        air.channel.put @q_l1[%c7, %c0_1] (%l2_q_7[%c0_1, %c0_1, %c0_1] [%c8, %c16_1, %c8] [%c8, %c64_1, %c1_2]) : (memref<16x64xbf16, 1>)
        %l2_k = memref.alloc() : memref<64x64xbf16, 1>
        %l2_v = memref.alloc() : memref<64x64xbf16, 1>
        scf.for %i_4 = %c0_1 to %c1_2 step %c1_2 {
          air.channel.get @k_in_0[%c0_1] (%l2_k[] [] []) : (memref<64x64xbf16, 1>)
          air.channel.put @kv_l1[%c0_1, %c0_1] (%l2_k[%c0_1, %c0_1, %c0_1] [%c8, %c64_1, %c8] [%c8, %c64_1, %c1_2]) : (memref<64x64xbf16, 1>)
          air.channel.get @v_in_0[%c0_1] (%l2_v[] [] []) : (memref<64x64xbf16, 1>)
          air.channel.put @kv_l1[%c0_1, %c0_1] (%l2_v[%c0_1, %c0_1, %c0_1] [%c8, %c64_1, %c8] [%c8, %c64_1, %c1_2]) : (memref<64x64xbf16, 1>)
        }
        %l2_k_1 = memref.alloc() : memref<64x64xbf16, 1>
        %l2_v_1 = memref.alloc() : memref<64x64xbf16, 1>
        scf.for %i_5 = %c0_1 to %c1_2 step %c1_2 {
          air.channel.get @k_in_1[%c0_1] (%l2_k_1[] [] []) : (memref<64x64xbf16, 1>)
          air.channel.put @kv_l1[%c0_1, %c1_2] (%l2_k_1[%c0_1, %c0_1, %c0_1] [%c8, %c64_1, %c8] [%c8, %c64_1, %c1_2]) : (memref<64x64xbf16, 1>)
          air.channel.get @v_in_1[%c0_1] (%l2_v_1[] [] []) : (memref<64x64xbf16, 1>)
          air.channel.put @kv_l1[%c0_1, %c1_2] (%l2_v_1[%c0_1, %c0_1, %c0_1] [%c8, %c64_1, %c8] [%c8, %c64_1, %c1_2]) : (memref<64x64xbf16, 1>)
        }
        %l2_out = memref.alloc() : memref<16x64xbf16, 1>
        air.channel.get @out_l2[%c0_1] (%l2_out[] [] []) : (memref<16x64xbf16, 1>)
        air.channel.put @out_l3_0[%c0_1] (%l2_out[] [] []) : (memref<16x64xbf16, 1>)
        %l2_out_1 = memref.alloc() : memref<16x64xbf16, 1>
        air.channel.get @out_l2[%c1_2] (%l2_out_1[] [] []) : (memref<16x64xbf16, 1>)
        air.channel.put @out_l3_1[%c0_1] (%l2_out_1[] [] []) : (memref<16x64xbf16, 1>)
        %l2_out_2 = memref.alloc() : memref<16x64xbf16, 1>
        air.channel.get @out_l2[%c2_1] (%l2_out_2[] [] []) : (memref<16x64xbf16, 1>)
        air.channel.put @out_l3_2[%c0_1] (%l2_out_2[] [] []) : (memref<16x64xbf16, 1>)
        %l2_out_3 = memref.alloc() : memref<16x64xbf16, 1>
        air.channel.get @out_l2[%c3] (%l2_out_3[] [] []) : (memref<16x64xbf16, 1>)
        air.channel.put @out_l3_3[%c0_1] (%l2_out_3[] [] []) : (memref<16x64xbf16, 1>)
        %l2_out_4 = memref.alloc() : memref<16x64xbf16, 1>
        air.channel.get @out_l2[%c4] (%l2_out_4[] [] []) : (memref<16x64xbf16, 1>)
        air.channel.put @out_l3_4[%c0_1] (%l2_out_4[] [] []) : (memref<16x64xbf16, 1>)
        %l2_out_5 = memref.alloc() : memref<16x64xbf16, 1>
        air.channel.get @out_l2[%c5] (%l2_out_5[] [] []) : (memref<16x64xbf16, 1>)
        air.channel.put @out_l3_5[%c0_1] (%l2_out_5[] [] []) : (memref<16x64xbf16, 1>)
        %l2_out_6 = memref.alloc() : memref<16x64xbf16, 1>
        air.channel.get @out_l2[%c6] (%l2_out_6[] [] []) : (memref<16x64xbf16, 1>)
        air.channel.put @out_l3_6[%c0_1] (%l2_out_6[] [] []) : (memref<16x64xbf16, 1>)
        %l2_out_7 = memref.alloc() : memref<16x64xbf16, 1>
        air.channel.get @out_l2[%c7] (%l2_out_7[] [] []) : (memref<16x64xbf16, 1>)
        air.channel.put @out_l3_7[%c0_1] (%l2_out_7[] [] []) : (memref<16x64xbf16, 1>)
        air.herd @attention_herd tile (%hx, %hy) in (%hsx=%c8, %hsy=%c2_1) args(%ly_2=%ly_1) : index {
          %c0_2 = arith.constant 0 : index
          %c1_3 = arith.constant 1 : index
          %c16_2 = arith.constant 16 : index
          %c8_1 = arith.constant 8 : index
          %c128_1 = arith.constant 128 : index
          %l1_q = memref.alloc() : memref<1024xbf16, 2>
          %l1_k = memref.alloc() : memref<4096xbf16, 2>
          %l1_v = memref.alloc() : memref<4096xbf16, 2>
          %l1_p = memref.alloc() : memref<1024xbf16, 2>
          %l1_work = memref.alloc() : memref<1024xf32, 2>
          %l1_acc = memref.alloc() : memref<1024xf32, 2>
          %l1_stats = memref.alloc() : memref<64xf32, 2>
          %l1_other_stats = memref.alloc() : memref<64xf32, 2>
          air.channel.get @q_l1[%hx, %hy] (%l1_q[] [] []) : (memref<1024xbf16, 2>)
          func.call @attn_init_16x64x64(%l1_acc, %l1_stats) : (memref<1024xf32, 2>, memref<64xf32, 2>) -> ()
          %bound = affine.apply affine_map<()[s0] -> (((((s0 * -1) + 1) floordiv 2) + 1))> ()[%hy]
          scf.for %i_6 = %c0_2 to %bound step %c1_3 {
            air.channel.get @kv_l1[%hx, %hy] (%l1_k[] [] []) : (memref<4096xbf16, 2>)
            %at_17 = affine.apply affine_map<()[s0, s1, s2, s3] -> ((((((s0 * 128) + (s1 * 16)) + (s3 * -128)) + (s2 * -64)) + 15))> ()[%ly_2, %hx, %hy, %i_6]
            %0 = arith.cmpi sge, %at_17, %c0_2 : index
            scf.if %0 {
              func.call @attn_scores_16x64x64(%l1_q, %l1_k, %l1_work) : (memref<1024xbf16, 2>, memref<4096xbf16, 2>, memref<1024xf32, 2>) -> ()
              %at_18 = affine.apply affine_map<()[s0, s1] -> (((s0 * 128) + (s1 * 16)))> ()[%ly_2, %hx]
              %1 = arith.index_cast %at_18 : index to i32
              %at_19 = affine.apply affine_map<()[s0, s1] -> (((s1 * 128) + (s0 * 64)))> ()[%hy, %i_6]
              %2 = arith.index_cast %at_19 : index to i32
              func.call @attn_causal_mask_16x64x64(%l1_work, %1, %2) : (memref<1024xf32, 2>, i32, i32) -> ()
            }
            air.channel.get @kv_l1[%hx, %hy] (%l1_v[] [] []) : (memref<4096xbf16, 2>)
            %3 = arith.cmpi sge, %at_17, %c0_2 : index
            scf.if %3 {
              func.call @attn_softmax_16x64x64(%l1_work, %l1_p, %l1_stats, %l1_acc) : (memref<1024xf32, 2>, memref<1024xbf16, 2>, memref<64xf32, 2>, memref<1024xf32, 2>) -> ()
              func.call @attn_values_16x64x64(%l1_p, %l1_v, %l1_acc) : (memref<1024xbf16, 2>, memref<4096xbf16, 2>, memref<1024xf32, 2>) -> ()
            }
          }
          affine.if affine_set<()[s0] : ((s0 * -1) >= 0)>()[%hy] {
            air.channel.get @partial[%hx, %hy] (%l1_work[] [] []) : (memref<1024xf32, 2>)
            air.channel.get @partial[%hx, %hy] (%l1_other_stats[] [] []) : (memref<64xf32, 2>)
            func.call @attn_merge_16x64x64(%l1_work, %l1_other_stats, %l1_acc, %l1_stats) : (memref<1024xf32, 2>, memref<64xf32, 2>, memref<1024xf32, 2>, memref<64xf32, 2>) -> ()
          }
          affine.if affine_set<()[s0] : ((s0 + -1) >= 0)>()[%hy] {
            %at_20 = affine.apply affine_map<()[s0] -> ((s0 + -1))> ()[%hy]
            air.channel.put @partial[%hx, %at_20] (%l1_acc[] [] []) : (memref<1024xf32, 2>)
            air.channel.put @partial[%hx, %at_20] (%l1_stats[] [] []) : (memref<64xf32, 2>)
          }
          affine.if affine_set<()[s0] : (s0 == 0)>()[%hy] {
            func.call @attn_store_16x64x64(%l1_acc, %l1_stats, %l1_q) : (memref<1024xf32, 2>, memref<64xf32, 2>, memref<1024xbf16, 2>) -> ()
            air.channel.put @out_l2[%hx] (%l1_q[%c0_2, %c0_2, %c0_2] [%c16_2, %c8_1, %c8_1] [%c8_1, %c128_1, %c1_3]) : (memref<1024xbf16, 2>)
          }
          memref.dealloc %l1_q : memref<1024xbf16, 2>
          memref.dealloc %l1_k : memref<4096xbf16, 2>
          memref.dealloc %l1_v : memref<4096xbf16, 2>
          memref.dealloc %l1_p : memref<1024xbf16, 2>
          memref.dealloc %l1_work : memref<1024xf32, 2>
          memref.dealloc %l1_acc : memref<1024xf32, 2>
          memref.dealloc %l1_stats : memref<64xf32, 2>
          memref.dealloc %l1_other_stats : memref<64xf32, 2>
        }
        memref.dealloc %l2_q : memref<16x64xbf16, 1>
        memref.dealloc %l2_q_1 : memref<16x64xbf16, 1>
        memref.dealloc %l2_q_2 : memref<16x64xbf16, 1>
        memref.dealloc %l2_q_3 : memref<16x64xbf16, 1>
        memref.dealloc %l2_q_4 : memref<16x64xbf16, 1>
        memref.dealloc %l2_q_5 : memref<16x64xbf16, 1>
        memref.dealloc %l2_q_6 : memref<16x64xbf16, 1>
        memref.dealloc %l2_q_7 : memref<16x64xbf16, 1>
        memref.dealloc %l2_k : memref<64x64xbf16, 1>
        memref.dealloc %l2_v : memref<64x64xbf16, 1>
        memref.dealloc %l2_k_1 : memref<64x64xbf16, 1>
        memref.dealloc %l2_v_1 : memref<64x64xbf16, 1>
        memref.dealloc %l2_out : memref<16x64xbf16, 1>
        memref.dealloc %l2_out_1 : memref<16x64xbf16, 1>
        memref.dealloc %l2_out_2 : memref<16x64xbf16, 1>
        memref.dealloc %l2_out_3 : memref<16x64xbf16, 1>
        memref.dealloc %l2_out_4 : memref<16x64xbf16, 1>
        memref.dealloc %l2_out_5 : memref<16x64xbf16, 1>
        memref.dealloc %l2_out_6 : memref<16x64xbf16, 1>
        memref.dealloc %l2_out_7 : memref<16x64xbf16, 1>
      }
    }
    func.return
  }
}
