// flash_attention, lq=64 lk=64 n_heads=2 n_kv_heads=1 head_dim=16 lqp=16 lkp=8, 2 tiles of 2 stages, after
// air-place-herds: the ping-pong form with the place of segment and herd.
#q_row = affine_map<()[s0] -> (s0 * 16)>
#q_row8 = affine_map<()[s0] -> (s0 * 16 + 8)>
#head = affine_map<()[s0] -> (s0 * 16)>
#kv_row = affine_map<()[s0] -> (s0 * 16)>
#kv_row8 = affine_map<()[s0] -> (s0 * 16 + 8)>
#kv_head = affine_map<()[s0] -> ((s0 floordiv 2) * 16)>
#tiles = affine_map<()[s0] -> ((-s0 + 1) floordiv 2 + 4)>
#seen = affine_map<()[s0, s1, s2, s3] -> (s0 * 16 + s1 * 8 - s3 * 16 - s2 * 8 + 7)>
#first_q = affine_map<()[s0, s1] -> (s0 * 16 + s1 * 8)>
#first_k = affine_map<()[s0, s1] -> (s1 * 16 + s0 * 8)>
#below = affine_map<()[s0] -> (s0 - 1)>
#not_last = affine_set<()[s0] : (-s0 >= 0)>
#not_first = affine_set<()[s0] : (s0 - 1 >= 0)>
#first = affine_set<()[s0] : (s0 == 0)>
#col0 = affine_set<()[s0, s1] : (s0 == 0, s1 >= 0, -s1 + 1 >= 0)>
#row0 = affine_set<()[s0, s1] : (s0 >= 0, -s0 + 1 >= 0, s1 == 0)>
module {
  air.channel @flash_attention_placed_q_in [2]
  air.channel @flash_attention_placed_kv_in [2]
  air.channel @flash_attention_placed_q_l1_0 [1, 1] {broadcast_shape = [1, 2]}
  air.channel @flash_attention_placed_q_l1_1 [1, 1] {broadcast_shape = [1, 2]}
  air.channel @flash_attention_placed_kv_l1_0 [1, 1] {broadcast_shape = [2, 1]}
  air.channel @flash_attention_placed_kv_l1_1 [1, 1] {broadcast_shape = [2, 1]}
  air.channel @flash_attention_placed_partial [2, 1] {channel_type = "npu_cascade"}
  air.channel @flash_attention_placed_out_l2 [2]
  air.channel @flash_attention_placed_out_l3 [2]
  func.func private @attn_init_8x8x16(memref<128xf32, 2>, memref<32xf32, 2>) attributes {link_with = "attn_8x8x16.o", link_source = "attn_npu2.cc", link_defines = "ATTN_Q_ROWS=8 ATTN_KV_ROWS=8 ATTN_HEAD_DIM=16 attn_init=attn_init_8x8x16 attn_scores=attn_scores_8x8x16 attn_causal_mask=attn_causal_mask_8x8x16 attn_softmax=attn_softmax_8x8x16 attn_values=attn_values_8x8x16 attn_merge=attn_merge_8x8x16 attn_store=attn_store_8x8x16", llvm.emit_c_interface}
  func.func private @attn_scores_8x8x16(memref<128xbf16, 2>, memref<128xbf16, 2>, memref<128xf32, 2>) attributes {link_with = "attn_8x8x16.o", link_source = "attn_npu2.cc", link_defines = "ATTN_Q_ROWS=8 ATTN_KV_ROWS=8 ATTN_HEAD_DIM=16 attn_init=attn_init_8x8x16 attn_scores=attn_scores_8x8x16 attn_causal_mask=attn_causal_mask_8x8x16 attn_softmax=attn_softmax_8x8x16 attn_values=attn_values_8x8x16 attn_merge=attn_merge_8x8x16 attn_store=attn_store_8x8x16", llvm.emit_c_interface}
  func.func private @attn_causal_mask_8x8x16(memref<128xf32, 2>, i32, i32) attributes {link_with = "attn_8x8x16.o", link_source = "attn_npu2.cc", link_defines = "ATTN_Q_ROWS=8 ATTN_KV_ROWS=8 ATTN_HEAD_DIM=16 attn_init=attn_init_8x8x16 attn_scores=attn_scores_8x8x16 attn_causal_mask=attn_causal_mask_8x8x16 attn_softmax=attn_softmax_8x8x16 attn_values=attn_values_8x8x16 attn_merge=attn_merge_8x8x16 attn_store=attn_store_8x8x16", llvm.emit_c_interface}
  func.func private @attn_softmax_8x8x16(memref<128xf32, 2>, memref<64xbf16, 2>, memref<32xf32, 2>, memref<128xf32, 2>) attributes {link_with = "attn_8x8x16.o", link_source = "attn_npu2.cc", link_defines = "ATTN_Q_ROWS=8 ATTN_KV_ROWS=8 ATTN_HEAD_DIM=16 attn_init=attn_init_8x8x16 attn_scores=attn_scores_8x8x16 attn_causal_mask=attn_causal_mask_8x8x16 attn_softmax=attn_softmax_8x8x16 attn_values=attn_values_8x8x16 attn_merge=attn_merge_8x8x16 attn_store=attn_store_8x8x16", llvm.emit_c_interface}
  func.func private @attn_values_8x8x16(memref<64xbf16, 2>, memref<128xbf16, 2>, memref<128xf32, 2>) attributes {link_with = "attn_8x8x16.o", link_source = "attn_npu2.cc", link_defines = "ATTN_Q_ROWS=8 ATTN_KV_ROWS=8 ATTN_HEAD_DIM=16 attn_init=attn_init_8x8x16 attn_scores=attn_scores_8x8x16 attn_causal_mask=attn_causal_mask_8x8x16 attn_softmax=attn_softmax_8x8x16 attn_values=attn_values_8x8x16 attn_merge=attn_merge_8x8x16 attn_store=attn_store_8x8x16", llvm.emit_c_interface}
  func.func private @attn_merge_8x8x16(memref<128xf32, 2>, memref<32xf32, 2>, memref<128xf32, 2>, memref<32xf32, 2>) attributes {link_with = "attn_8x8x16.o", link_source = "attn_npu2.cc", link_defines = "ATTN_Q_ROWS=8 ATTN_KV_ROWS=8 ATTN_HEAD_DIM=16 attn_init=attn_init_8x8x16 attn_scores=attn_scores_8x8x16 attn_causal_mask=attn_causal_mask_8x8x16 attn_softmax=attn_softmax_8x8x16 attn_values=attn_values_8x8x16 attn_merge=attn_merge_8x8x16 attn_store=attn_store_8x8x16", llvm.emit_c_interface}
  func.func private @attn_store_8x8x16(memref<128xf32, 2>, memref<32xf32, 2>, memref<128xbf16, 2>) attributes {link_with = "attn_8x8x16.o", link_source = "attn_npu2.cc", link_defines = "ATTN_Q_ROWS=8 ATTN_KV_ROWS=8 ATTN_HEAD_DIM=16 attn_init=attn_init_8x8x16 attn_scores=attn_scores_8x8x16 attn_causal_mask=attn_causal_mask_8x8x16 attn_softmax=attn_softmax_8x8x16 attn_values=attn_values_8x8x16 attn_merge=attn_merge_8x8x16 attn_store=attn_store_8x8x16", llvm.emit_c_interface}
  func.func @flash_attention_placed(%q: memref<64x32xbf16>, %k: memref<64x16xbf16>, %v: memref<64x16xbf16>, %out: memref<64x32xbf16>) {
    %c2 = arith.constant 2 : index
    %c4 = arith.constant 4 : index
    %launched = air.launch async (%lx, %ly) in (%lsx=%c4, %lsy=%c2) args(%q_1=%q, %out_1=%out, %k_1=%k, %v_1=%v) : memref<64x32xbf16>, memref<64x32xbf16>, memref<64x16xbf16>, memref<64x16xbf16> attributes {id = 1 : i32} {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c4 = arith.constant 4 : index
      %c8 = arith.constant 8 : index
      %c16 = arith.constant 16 : index
      %c32 = arith.constant 32 : index
      %row0_known, %row0 = air.execute -> (index) {
        %pos = affine.apply #q_row()[%lx]
        air.execute_terminator %pos : index
      }
      %head0_known, %head0 = air.execute -> (index) {
        %pos = affine.apply #head()[%ly]
        air.execute_terminator %pos : index
      }
      %q_out0 = air.channel.put async [%row0_known, %head0_known] @flash_attention_placed_q_in[%c0] (%q_1[%row0, %head0] [%c8, %c16] [%c32, %c1]) {id = 1 : i32} : (memref<64x32xbf16>)
      %result0 = air.channel.get async [%row0_known, %head0_known] @flash_attention_placed_out_l3[%c0] (%out_1[%row0, %head0] [%c8, %c16] [%c32, %c1]) {id = 2 : i32} : (memref<64x32xbf16>)
      %row1_known, %row1 = air.execute -> (index) {
        %pos = affine.apply #q_row8()[%lx]
        air.execute_terminator %pos : index
      }
      %head1_known, %head1 = air.execute -> (index) {
        %pos = affine.apply #head()[%ly]
        air.execute_terminator %pos : index
      }
      %q_out1 = air.channel.put async [%row1_known, %head1_known] @flash_attention_placed_q_in[%c1] (%q_1[%row1, %head1] [%c8, %c16] [%c32, %c1]) {id = 3 : i32} : (memref<64x32xbf16>)
      %result1 = air.channel.get async [%row1_known, %head1_known] @flash_attention_placed_out_l3[%c1] (%out_1[%row1, %head1] [%c8, %c16] [%c32, %c1]) {id = 4 : i32} : (memref<64x32xbf16>)
      %kv0_known, %kv0 = air.execute -> (index) {
        %pos = affine.apply #kv_head()[%ly]
        air.execute_terminator %pos : index
      }
      %kv_out0 = scf.for %i = %c0 to %c4 step %c1 iter_args(%before = %kv0_known) -> (!air.async.token) {
        %at_known, %at = air.execute [%before] -> (index) {
          %pos = affine.apply #kv_row()[%i]
          air.execute_terminator %pos : index
        }
        %k_out = air.channel.put async [%at_known] @flash_attention_placed_kv_in[%c0] (%k_1[%at, %kv0] [%c8, %c16] [%c16, %c1]) {id = 5 : i32} : (memref<64x16xbf16>)
        %v_out = air.channel.put async [%k_out] @flash_attention_placed_kv_in[%c0] (%v_1[%at, %kv0] [%c8, %c16] [%c16, %c1]) {id = 6 : i32} : (memref<64x16xbf16>)
        scf.yield %v_out : !air.async.token
      }
      %kv1_known, %kv1 = air.execute -> (index) {
        %pos = affine.apply #kv_head()[%ly]
        air.execute_terminator %pos : index
      }
      %kv_out1 = scf.for %i = %c0 to %c4 step %c1 iter_args(%before = %kv1_known) -> (!air.async.token) {
        %at_known, %at = air.execute [%before] -> (index) {
          %pos = affine.apply #kv_row8()[%i]
          air.execute_terminator %pos : index
        }
        %k_out = air.channel.put async [%at_known] @flash_attention_placed_kv_in[%c1] (%k_1[%at, %kv1] [%c8, %c16] [%c16, %c1]) {id = 7 : i32} : (memref<64x16xbf16>)
        %v_out = air.channel.put async [%k_out] @flash_attention_placed_kv_in[%c1] (%v_1[%at, %kv1] [%c8, %c16] [%c16, %c1]) {id = 8 : i32} : (memref<64x16xbf16>)
        scf.yield %v_out : !air.async.token
      }
      %segment = air.segment @attention_segment async args(%lx_1=%lx) : index attributes {id = 2 : i32, x_loc = 0 : i64, x_size = 8 : i64, y_loc = 2 : i64, y_size = 6 : i64} {
        %c0 = arith.constant 0 : index
        %c1 = arith.constant 1 : index
        %c2 = arith.constant 2 : index
        %c8 = arith.constant 8 : index
        %c16 = arith.constant 16 : index
        %l2_q0_new, %l2_q0 = air.execute -> (memref<8x16xbf16, 1>) {
          %alloc = memref.alloc() : memref<8x16xbf16, 1>
          air.execute_terminator %alloc : memref<8x16xbf16, 1>
        }
        %q_in0 = air.channel.get async [%l2_q0_new] @flash_attention_placed_q_in[%c0] (%l2_q0[] [] []) {id = 9 : i32} : (memref<8x16xbf16, 1>)
        %q_fed0 = air.channel.put async [%q_in0] @flash_attention_placed_q_l1_0[] (%l2_q0[%c0, %c0, %c0] [%c2, %c8, %c8] [%c8, %c16, %c1]) {id = 10 : i32} : (memref<8x16xbf16, 1>)
        %free_q0 = air.execute [%q_fed0] {
          memref.dealloc %l2_q0 : memref<8x16xbf16, 1>
        }
        %l2_out0_new, %l2_out0 = air.execute -> (memref<8x16xbf16, 1>) {
          %alloc = memref.alloc() : memref<8x16xbf16, 1>
          air.execute_terminator %alloc : memref<8x16xbf16, 1>
        }
        %out_in0 = air.channel.get async [%l2_out0_new] @flash_attention_placed_out_l2[%c0] (%l2_out0[] [] []) {id = 11 : i32} : (memref<8x16xbf16, 1>)
        %out_fed0 = air.channel.put async [%out_in0] @flash_attention_placed_out_l3[%c0] (%l2_out0[] [] []) {id = 12 : i32} : (memref<8x16xbf16, 1>)
        %free_out0 = air.execute [%out_fed0] {
          memref.dealloc %l2_out0 : memref<8x16xbf16, 1>
        }
        %l2_q1_new, %l2_q1 = air.execute -> (memref<8x16xbf16, 1>) {
          %alloc = memref.alloc() : memref<8x16xbf16, 1>
          air.execute_terminator %alloc : memref<8x16xbf16, 1>
        }
        %q_in1 = air.channel.get async [%l2_q1_new] @flash_attention_placed_q_in[%c1] (%l2_q1[] [] []) {id = 13 : i32} : (memref<8x16xbf16, 1>)
        %q_fed1 = air.channel.put async [%q_in1] @flash_attention_placed_q_l1_1[] (%l2_q1[%c0, %c0, %c0] [%c2, %c8, %c8] [%c8, %c16, %c1]) {id = 14 : i32} : (memref<8x16xbf16, 1>)
        %free_q1 = air.execute [%q_fed1] {
          memref.dealloc %l2_q1 : memref<8x16xbf16, 1>
        }
        %l2_out1_new, %l2_out1 = air.execute -> (memref<8x16xbf16, 1>) {
          %alloc = memref.alloc() : memref<8x16xbf16, 1>
          air.execute_terminator %alloc : memref<8x16xbf16, 1>
        }
        %out_in1 = air.channel.get async [%l2_out1_new] @flash_attention_placed_out_l2[%c1] (%l2_out1[] [] []) {id = 15 : i32} : (memref<8x16xbf16, 1>)
        %out_fed1 = air.channel.put async [%out_in1] @flash_attention_placed_out_l3[%c1] (%l2_out1[] [] []) {id = 16 : i32} : (memref<8x16xbf16, 1>)
        %free_out1 = air.execute [%out_fed1] {
          memref.dealloc %l2_out1 : memref<8x16xbf16, 1>
        }
        %kv_begin0 = air.wait_all async
        %l2_kv0_1_new, %l2_kv0_1 = air.execute [%kv_begin0] -> (memref<8x16xbf16, 1>) {
          %alloc = memref.alloc() : memref<8x16xbf16, 1>
          air.execute_terminator %alloc : memref<8x16xbf16, 1>
        } {unrolled_iteration = 1 : i32}
        %l2_kv0_0_new, %l2_kv0_0 = air.execute [%l2_kv0_1_new] -> (memref<8x16xbf16, 1>) {
          %alloc = memref.alloc() : memref<8x16xbf16, 1>
          air.execute_terminator %alloc : memref<8x16xbf16, 1>
        } {unrolled_iteration = 0 : i32}
        %kv0:4 = scf.for %i = %c0 to %c8 step %c2 iter_args(%ping = %l2_kv0_0_new, %pong = %l2_kv0_0_new, %back = %l2_kv0_0_new, %front = %l2_kv0_0_new) -> (!air.async.token, !air.async.token, !air.async.token, !air.async.token) {
          %kv_in0 = air.channel.get async [%front, %ping] @flash_attention_placed_kv_in[%c0] (%l2_kv0_0[] [] []) {id = 17 : i32, unrolled_iteration = 0 : i32} : (memref<8x16xbf16, 1>)
          %kv_fed0 = air.channel.put async [%back, %kv_in0] @flash_attention_placed_kv_l1_0[] (%l2_kv0_0[%c0, %c0, %c0] [%c2, %c8, %c8] [%c8, %c16, %c1]) {id = 18 : i32, unrolled_iteration = 0 : i32} : (memref<8x16xbf16, 1>)
          %kv_in1 = air.channel.get async [%kv_in0, %pong] @flash_attention_placed_kv_in[%c0] (%l2_kv0_1[] [] []) {id = 19 : i32, unrolled_iteration = 1 : i32} : (memref<8x16xbf16, 1>)
          %kv_fed1 = air.channel.put async [%kv_fed0, %kv_in1] @flash_attention_placed_kv_l1_0[] (%l2_kv0_1[%c0, %c0, %c0] [%c2, %c8, %c8] [%c8, %c16, %c1]) {id = 20 : i32, unrolled_iteration = 1 : i32} : (memref<8x16xbf16, 1>)
          scf.yield %kv_fed0, %kv_fed1, %kv_fed1, %kv_in1 : !air.async.token, !air.async.token, !air.async.token, !air.async.token
        } {unroll = 2 : i32}
        %kv_end0 = air.wait_all async [%kv0#0, %kv0#1, %kv0#2, %kv0#3]
        %free_kv0_0 = air.execute [%kv_end0] {
          memref.dealloc %l2_kv0_0 : memref<8x16xbf16, 1>
        } {unrolled_iteration = 0 : i32}
        %free_kv0_1 = air.execute [%kv_end0] {
          memref.dealloc %l2_kv0_1 : memref<8x16xbf16, 1>
        } {unrolled_iteration = 1 : i32}
        %kv_begin1 = air.wait_all async
        %l2_kv1_1_new, %l2_kv1_1 = air.execute [%kv_begin1] -> (memref<8x16xbf16, 1>) {
          %alloc = memref.alloc() : memref<8x16xbf16, 1>
          air.execute_terminator %alloc : memref<8x16xbf16, 1>
        } {unrolled_iteration = 1 : i32}
        %l2_kv1_0_new, %l2_kv1_0 = air.execute [%l2_kv1_1_new] -> (memref<8x16xbf16, 1>) {
          %alloc = memref.alloc() : memref<8x16xbf16, 1>
          air.execute_terminator %alloc : memref<8x16xbf16, 1>
        } {unrolled_iteration = 0 : i32}
        %kv1:4 = scf.for %i = %c0 to %c8 step %c2 iter_args(%ping = %l2_kv1_0_new, %pong = %l2_kv1_0_new, %back = %l2_kv1_0_new, %front = %l2_kv1_0_new) -> (!air.async.token, !air.async.token, !air.async.token, !air.async.token) {
          %kv_in0 = air.channel.get async [%front, %ping] @flash_attention_placed_kv_in[%c1] (%l2_kv1_0[] [] []) {id = 21 : i32, unrolled_iteration = 0 : i32} : (memref<8x16xbf16, 1>)
          %kv_fed0 = air.channel.put async [%back, %kv_in0] @flash_attention_placed_kv_l1_1[] (%l2_kv1_0[%c0, %c0, %c0] [%c2, %c8, %c8] [%c8, %c16, %c1]) {id = 22 : i32, unrolled_iteration = 0 : i32} : (memref<8x16xbf16, 1>)
          %kv_in1 = air.channel.get async [%kv_in0, %pong] @flash_attention_placed_kv_in[%c1] (%l2_kv1_1[] [] []) {id = 23 : i32, unrolled_iteration = 1 : i32} : (memref<8x16xbf16, 1>)
          %kv_fed1 = air.channel.put async [%kv_fed0, %kv_in1] @flash_attention_placed_kv_l1_1[] (%l2_kv1_1[%c0, %c0, %c0] [%c2, %c8, %c8] [%c8, %c16, %c1]) {id = 24 : i32, unrolled_iteration = 1 : i32} : (memref<8x16xbf16, 1>)
          scf.yield %kv_fed0, %kv_fed1, %kv_fed1, %kv_in1 : !air.async.token, !air.async.token, !air.async.token, !air.async.token
        } {unroll = 2 : i32}
        %kv_end1 = air.wait_all async [%kv1#0, %kv1#1, %kv1#2, %kv1#3]
        %free_kv1_0 = air.execute [%kv_end1] {
          memref.dealloc %l2_kv1_0 : memref<8x16xbf16, 1>
        } {unrolled_iteration = 0 : i32}
        %free_kv1_1 = air.execute [%kv_end1] {
          memref.dealloc %l2_kv1_1 : memref<8x16xbf16, 1>
        } {unrolled_iteration = 1 : i32}
        %herd = air.herd @attention_herd async tile (%hx, %hy) in (%nx=%c2, %ny=%c2) args(%lx_2=%lx_1) : index attributes {id = 3 : i32, link_with = "attn_8x8x16.o", x_loc = 0 : i64, y_loc = 2 : i64} {
          %c0 = arith.constant 0 : index
          %c1 = arith.constant 1 : index
          %c2 = arith.constant 2 : index
          %c4 = arith.constant 4 : index
          %c8 = arith.constant 8 : index
          %c16 = arith.constant 16 : index
          %c64 = arith.constant 64 : index
          %l1_q_new, %l1_q = air.execute -> (memref<128xbf16, 2>) {
            %alloc = memref.alloc() : memref<128xbf16, 2>
            air.execute_terminator %alloc : memref<128xbf16, 2>
          }
          %l1_p_new, %l1_p = air.execute -> (memref<64xbf16, 2>) {
            %alloc = memref.alloc() : memref<64xbf16, 2>
            air.execute_terminator %alloc : memref<64xbf16, 2>
          }
          %l1_work_new, %l1_work = air.execute -> (memref<128xf32, 2>) {
            %alloc = memref.alloc() : memref<128xf32, 2>
            air.execute_terminator %alloc : memref<128xf32, 2>
          }
          %l1_acc_new, %l1_acc = air.execute -> (memref<128xf32, 2>) {
            %alloc = memref.alloc() : memref<128xf32, 2>
            air.execute_terminator %alloc : memref<128xf32, 2>
          }
          %l1_stats_new, %l1_stats = air.execute -> (memref<32xf32, 2>) {
            %alloc = memref.alloc() : memref<32xf32, 2>
            air.execute_terminator %alloc : memref<32xf32, 2>
          }
          %l1_other_new, %l1_other = air.execute -> (memref<32xf32, 2>) {
            %alloc = memref.alloc() : memref<32xf32, 2>
            air.execute_terminator %alloc : memref<32xf32, 2>
          }
          %q_in = affine.if #col0()[%hx, %hy] -> !air.async.token {
            %one = air.channel.get async [%l1_q_new] @flash_attention_placed_q_l1_0[%hx, %hy] (%l1_q[] [] []) {id = 25 : i32} : (memref<128xbf16, 2>)
            affine.yield %one : !air.async.token
          } else {
            %one = air.channel.get async [%l1_q_new] @flash_attention_placed_q_l1_1[%hx, %hy] (%l1_q[] [] []) {id = 26 : i32} : (memref<128xbf16, 2>)
            affine.yield %one : !air.async.token
          }
          %zeroed = air.execute [%l1_acc_new, %l1_stats_new] {
            func.call @attn_init_8x8x16(%l1_acc, %l1_stats) : (memref<128xf32, 2>, memref<32xf32, 2>) -> ()
          }
          %started = air.wait_all async [%q_in, %zeroed, %l1_p_new, %l1_work_new, %l1_other_new]
          %l1_v1_new, %l1_v1 = air.execute [%started] -> (memref<128xbf16, 2>) {
            %alloc = memref.alloc() : memref<128xbf16, 2>
            air.execute_terminator %alloc : memref<128xbf16, 2>
          } {unrolled_iteration = 1 : i32}
          %l1_k1_new, %l1_k1 = air.execute [%l1_v1_new] -> (memref<128xbf16, 2>) {
            %alloc = memref.alloc() : memref<128xbf16, 2>
            air.execute_terminator %alloc : memref<128xbf16, 2>
          } {unrolled_iteration = 1 : i32}
          %l1_v0_new, %l1_v0 = air.execute [%l1_k1_new] -> (memref<128xbf16, 2>) {
            %alloc = memref.alloc() : memref<128xbf16, 2>
            air.execute_terminator %alloc : memref<128xbf16, 2>
          } {unrolled_iteration = 0 : i32}
          %l1_k0_new, %l1_k0 = air.execute [%l1_v0_new] -> (memref<128xbf16, 2>) {
            %alloc = memref.alloc() : memref<128xbf16, 2>
            air.execute_terminator %alloc : memref<128xbf16, 2>
          } {unrolled_iteration = 0 : i32}
          %tiles:4 = scf.for %i = %c0 to %c4 step %c2 iter_args(%ping = %l1_k0_new, %pong = %l1_k0_new, %back = %l1_k0_new, %front = %l1_k0_new) -> (!air.async.token, !air.async.token, !air.async.token, !air.async.token) {
            %k_in0 = affine.if #row0()[%hx, %hy] -> !air.async.token {
              %one = air.channel.get async [%front, %ping] @flash_attention_placed_kv_l1_0[%hx, %hy] (%l1_k0[] [] []) {id = 27 : i32, unrolled_iteration = 0 : i32} : (memref<128xbf16, 2>)
              affine.yield %one : !air.async.token
            } else {
              %one = air.channel.get async [%front, %ping] @flash_attention_placed_kv_l1_1[%hx, %hy] (%l1_k0[] [] []) {id = 28 : i32, unrolled_iteration = 0 : i32} : (memref<128xbf16, 2>)
              affine.yield %one : !air.async.token
            }
            %place0 = affine.apply #seen()[%lx_2, %hx, %hy, %i]
            %visible0 = arith.cmpi sge, %place0, %c0 : index
            %scored0 = scf.if %visible0 -> (!air.async.token) {
              %scores = air.execute [%back, %k_in0] {
                func.call @attn_scores_8x8x16(%l1_q, %l1_k0, %l1_work) : (memref<128xbf16, 2>, memref<128xbf16, 2>, memref<128xf32, 2>) -> ()
              }
              %first_q = affine.apply #first_q()[%lx_2, %hx]
              %row = arith.index_cast %first_q : index to i32
              %first_k = affine.apply #first_k()[%hy, %i]
              %key = arith.index_cast %first_k : index to i32
              %masked = air.execute [%scores] {
                func.call @attn_causal_mask_8x8x16(%l1_work, %row, %key) : (memref<128xf32, 2>, i32, i32) -> ()
              }
              scf.yield %masked : !air.async.token
            } else {
              %nothing = air.wait_all async [%back, %k_in0]
              scf.yield %nothing : !air.async.token
            }
            %v_in0 = affine.if #row0()[%hx, %hy] -> !air.async.token {
              %one = air.channel.get async [%k_in0, %ping] @flash_attention_placed_kv_l1_0[%hx, %hy] (%l1_v0[] [] []) {id = 29 : i32, unrolled_iteration = 0 : i32} : (memref<128xbf16, 2>)
              affine.yield %one : !air.async.token
            } else {
              %one = air.channel.get async [%k_in0, %ping] @flash_attention_placed_kv_l1_1[%hx, %hy] (%l1_v0[] [] []) {id = 30 : i32, unrolled_iteration = 0 : i32} : (memref<128xbf16, 2>)
              affine.yield %one : !air.async.token
            }
            %done0 = scf.if %visible0 -> (!air.async.token) {
              %weighed = air.execute [%scored0] {
                func.call @attn_softmax_8x8x16(%l1_work, %l1_p, %l1_stats, %l1_acc) : (memref<128xf32, 2>, memref<64xbf16, 2>, memref<32xf32, 2>, memref<128xf32, 2>) -> ()
              }
              %added = air.execute [%weighed, %v_in0] {
                func.call @attn_values_8x8x16(%l1_p, %l1_v0, %l1_acc) : (memref<64xbf16, 2>, memref<128xbf16, 2>, memref<128xf32, 2>) -> ()
              }
              scf.yield %added : !air.async.token
            } else {
              %nothing = air.wait_all async [%scored0, %v_in0]
              scf.yield %nothing : !air.async.token
            }
            %next = arith.addi %i, %c1 : index
            %k_in1 = affine.if #row0()[%hx, %hy] -> !air.async.token {
              %one = air.channel.get async [%v_in0, %pong] @flash_attention_placed_kv_l1_0[%hx, %hy] (%l1_k1[] [] []) {id = 31 : i32, unrolled_iteration = 1 : i32} : (memref<128xbf16, 2>)
              affine.yield %one : !air.async.token
            } else {
              %one = air.channel.get async [%v_in0, %pong] @flash_attention_placed_kv_l1_1[%hx, %hy] (%l1_k1[] [] []) {id = 32 : i32, unrolled_iteration = 1 : i32} : (memref<128xbf16, 2>)
              affine.yield %one : !air.async.token
            }
            %place1 = affine.apply #seen()[%lx_2, %hx, %hy, %next]
            %visible1 = arith.cmpi sge, %place1, %c0 : index
            %scored1 = scf.if %visible1 -> (!air.async.token) {
              %scores = air.execute [%done0, %k_in1] {
                func.call @attn_scores_8x8x16(%l1_q, %l1_k1, %l1_work) : (memref<128xbf16, 2>, memref<128xbf16, 2>, memref<128xf32, 2>) -> ()
              }
              %first_q = affine.apply #first_q()[%lx_2, %hx]
              %row = arith.index_cast %first_q : index to i32
              %first_k = affine.apply #first_k()[%hy, %next]
              %key = arith.index_cast %first_k : index to i32
              %masked = air.execute [%scores] {
                func.call @attn_causal_mask_8x8x16(%l1_work, %row, %key) : (memref<128xf32, 2>, i32, i32) -> ()
              }
              scf.yield %masked : !air.async.token
            } else {
              %nothing = air.wait_all async [%done0, %k_in1]
              scf.yield %nothing : !air.async.token
            }
            %v_in1 = affine.if #row0()[%hx, %hy] -> !air.async.token {
              %one = air.channel.get async [%k_in1, %pong] @flash_attention_placed_kv_l1_0[%hx, %hy] (%l1_v1[] [] []) {id = 33 : i32, unrolled_iteration = 1 : i32} : (memref<128xbf16, 2>)
              affine.yield %one : !air.async.token
            } else {
              %one = air.channel.get async [%k_in1, %pong] @flash_attention_placed_kv_l1_1[%hx, %hy] (%l1_v1[] [] []) {id = 34 : i32, unrolled_iteration = 1 : i32} : (memref<128xbf16, 2>)
              affine.yield %one : !air.async.token
            }
            %done1 = scf.if %visible1 -> (!air.async.token) {
              %weighed = air.execute [%scored1] {
                func.call @attn_softmax_8x8x16(%l1_work, %l1_p, %l1_stats, %l1_acc) : (memref<128xf32, 2>, memref<64xbf16, 2>, memref<32xf32, 2>, memref<128xf32, 2>) -> ()
              }
              %added = air.execute [%weighed, %v_in1] {
                func.call @attn_values_8x8x16(%l1_p, %l1_v1, %l1_acc) : (memref<64xbf16, 2>, memref<128xbf16, 2>, memref<128xf32, 2>) -> ()
              }
              scf.yield %added : !air.async.token
            } else {
              %nothing = air.wait_all async [%scored1, %v_in1]
              scf.yield %nothing : !air.async.token
            }
            scf.yield %done0, %done1, %done1, %v_in1 : !air.async.token, !air.async.token, !air.async.token, !air.async.token
          } {unroll = 2 : i32}
          %seen = air.wait_all async [%tiles#0, %tiles#1, %tiles#2, %tiles#3]
          %free_l1_v1 = air.execute [%seen] {
            memref.dealloc %l1_v1 : memref<128xbf16, 2>
          } {unrolled_iteration = 1 : i32}
          %free_l1_k1 = air.execute [%seen] {
            memref.dealloc %l1_k1 : memref<128xbf16, 2>
          } {unrolled_iteration = 1 : i32}
          %free_l1_v0 = air.execute [%seen] {
            memref.dealloc %l1_v0 : memref<128xbf16, 2>
          } {unrolled_iteration = 0 : i32}
          %free_l1_k0 = air.execute [%seen] {
            memref.dealloc %l1_k0 : memref<128xbf16, 2>
          } {unrolled_iteration = 0 : i32}
          %merged = affine.if #not_last()[%hy] -> !air.async.token {
            %acc_in = air.channel.get async [%seen] @flash_attention_placed_partial[%hx, %hy] (%l1_work[] [] []) {id = 35 : i32} : (memref<128xf32, 2>)
            %stats_in = air.channel.get async [%acc_in] @flash_attention_placed_partial[%hx, %hy] (%l1_other[] [] []) {id = 36 : i32} : (memref<32xf32, 2>)
            %summed = air.execute [%acc_in, %stats_in] {
              func.call @attn_merge_8x8x16(%l1_work, %l1_other, %l1_acc, %l1_stats) : (memref<128xf32, 2>, memref<32xf32, 2>, memref<128xf32, 2>, memref<32xf32, 2>) -> ()
            }
            affine.yield %summed : !air.async.token
          } else {
            %nothing = air.wait_all async [%seen]
            affine.yield %nothing : !air.async.token
          }
          %passed = affine.if #not_first()[%hy] -> !air.async.token {
            %below = affine.apply #below()[%hy]
            %acc_out = air.channel.put async [%merged] @flash_attention_placed_partial[%hx, %below] (%l1_acc[] [] []) {id = 37 : i32} : (memref<128xf32, 2>)
            %stats_out = air.channel.put async [%acc_out] @flash_attention_placed_partial[%hx, %below] (%l1_stats[] [] []) {id = 38 : i32} : (memref<32xf32, 2>)
            affine.yield %stats_out : !air.async.token
          } else {
            %nothing = air.wait_all async [%merged]
            affine.yield %nothing : !air.async.token
          }
          %finished = affine.if #first()[%hy] -> !air.async.token {
            %normal = air.execute [%merged] {
              func.call @attn_store_8x8x16(%l1_acc, %l1_stats, %l1_q) : (memref<128xf32, 2>, memref<32xf32, 2>, memref<128xbf16, 2>) -> ()
            }
            %result_out = air.channel.put async [%normal] @flash_attention_placed_out_l2[%hx] (%l1_q[%c0, %c0, %c0] [%c8, %c2, %c8] [%c8, %c64, %c1]) {id = 39 : i32} : (memref<128xbf16, 2>)
            affine.yield %result_out : !air.async.token
          } else {
            %nothing = air.wait_all async [%passed]
            affine.yield %nothing : !air.async.token
          }
          %over = air.wait_all async [%finished, %passed]
          %free_l1_q = air.execute [%over] {
            memref.dealloc %l1_q : memref<128xbf16, 2>
          }
          %free_l1_p = air.execute [%over] {
            memref.dealloc %l1_p : memref<64xbf16, 2>
          }
          %free_l1_work = air.execute [%over] {
            memref.dealloc %l1_work : memref<128xf32, 2>
          }
          %free_l1_acc = air.execute [%over] {
            memref.dealloc %l1_acc : memref<128xf32, 2>
          }
          %free_l1_stats = air.execute [%over] {
            memref.dealloc %l1_stats : memref<32xf32, 2>
          }
          %free_l1_other = air.execute [%over] {
            memref.dealloc %l1_other : memref<32xf32, 2>
          }
        }
      }
    }
    return
  }
}
