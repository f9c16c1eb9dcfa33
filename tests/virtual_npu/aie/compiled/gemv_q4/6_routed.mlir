module {
  aie.device(npu2) @gemv_segment {
    %shim_noc_tile_1_0 = aie.tile(1, 0) {controller_id = #aie.packet_info<pkt_type = 0, pkt_id = 15>}
    %shim_noc_tile_0_0 = aie.tile(0, 0) {controller_id = #aie.packet_info<pkt_type = 0, pkt_id = 15>}
    %tile_0_2 = aie.tile(0, 2) {controller_id = #aie.packet_info<pkt_type = 0, pkt_id = 27>}
    %tile_1_2 = aie.tile(1, 2) {controller_id = #aie.packet_info<pkt_type = 0, pkt_id = 27>}
    %lock_0_2 = aie.lock(%tile_0_2, 5) {init = 1 : i32}
    %lock_0_2_0 = aie.lock(%tile_0_2, 4) {init = 0 : i32}
    %lock_0_2_1 = aie.lock(%tile_0_2, 3) {init = 1 : i32}
    %lock_0_2_2 = aie.lock(%tile_0_2, 2) {init = 0 : i32}
    %lock_0_2_3 = aie.lock(%tile_0_2, 1) {init = 1 : i32}
    %lock_0_2_4 = aie.lock(%tile_0_2, 0) {init = 0 : i32}
    %lock_1_2 = aie.lock(%tile_1_2, 5) {init = 1 : i32}
    %lock_1_2_5 = aie.lock(%tile_1_2, 4) {init = 0 : i32}
    %lock_1_2_6 = aie.lock(%tile_1_2, 3) {init = 1 : i32}
    %lock_1_2_7 = aie.lock(%tile_1_2, 2) {init = 0 : i32}
    %lock_1_2_8 = aie.lock(%tile_1_2, 1) {init = 1 : i32}
    %lock_1_2_9 = aie.lock(%tile_1_2, 0) {init = 0 : i32}
    %buf7 = aie.buffer(%tile_1_2) {address = 32768 : i32, mem_bank = 2 : i32, sym_name = "buf7"} : memref<64xbf16, 2> 
    %buf6 = aie.buffer(%tile_1_2) {address = 16384 : i32, mem_bank = 1 : i32, sym_name = "buf6"} : memref<1x5120xi8, 2> 
    %buf5 = aie.buffer(%tile_1_2) {address = 2048 : i32, mem_bank = 0 : i32, sym_name = "buf5"} : memref<2x64x16xf32, 2> 
    %buf4 = aie.buffer(%tile_1_2) {address = 49152 : i32, mem_bank = 3 : i32, sym_name = "buf4"} : memref<32xbf16, 2> 
    %buf3 = aie.buffer(%tile_0_2) {address = 32768 : i32, mem_bank = 2 : i32, sym_name = "buf3"} : memref<64xbf16, 2> 
    %buf2 = aie.buffer(%tile_0_2) {address = 16384 : i32, mem_bank = 1 : i32, sym_name = "buf2"} : memref<1x5120xi8, 2> 
    %buf1 = aie.buffer(%tile_0_2) {address = 2048 : i32, mem_bank = 0 : i32, sym_name = "buf1"} : memref<2x64x16xf32, 2> 
    %buf0 = aie.buffer(%tile_0_2) {address = 49152 : i32, mem_bank = 3 : i32, sym_name = "buf0"} : memref<32xbf16, 2> 
    %__air_external_buffer = aie.external_buffer {sym_name = "__air_external_buffer"} : memref<64xbf16>
    %__air_external_buffer_1 = aie.external_buffer {sym_name = "__air_external_buffer_1"} : memref<2x1x5120xi8>
    %__air_external_buffer_2 = aie.external_buffer {sym_name = "__air_external_buffer_2"} : memref<64xbf16>
    %mem_1_2 = aie.mem(%tile_1_2) {
      %c1_i32 = arith.constant 1 : i32
      %0 = aie.dma_start(MM2S, 0, ^bb1, ^bb3)
    ^bb1:  // 2 preds: ^bb0, ^bb1
      aie.use_lock(%lock_1_2_9, AcquireGreaterEqual, %c1_i32)
      aie.dma_bd(%buf4 : memref<32xbf16, 2> offset = 0 len = 32) {bd_id = 0 : i32, next_bd_id = 0 : i32, task_id = 0 : i32}
      aie.use_lock(%lock_1_2_8, Release, %c1_i32)
      aie.next_bd ^bb1
    ^bb2:  // pred: ^bb5
      aie.end
    ^bb3:  // pred: ^bb0
      %1 = aie.dma_start(S2MM, 0, ^bb4, ^bb5)
    ^bb4:  // 2 preds: ^bb3, ^bb4
      aie.use_lock(%lock_1_2_6, AcquireGreaterEqual, %c1_i32)
      aie.dma_bd(%buf7 : memref<64xbf16, 2> offset = 0 len = 64) {bd_id = 1 : i32, next_bd_id = 1 : i32, task_id = 0 : i32}
      aie.use_lock(%lock_1_2_7, Release, %c1_i32)
      aie.next_bd ^bb4
    ^bb5:  // pred: ^bb3
      %2 = aie.dma_start(S2MM, 1, ^bb6, ^bb2)
    ^bb6:  // 2 preds: ^bb5, ^bb6
      aie.use_lock(%lock_1_2, AcquireGreaterEqual, %c1_i32)
      aie.dma_bd(%buf6 : memref<1x5120xi8, 2> offset = 0 len = 5120) {bd_id = 2 : i32, next_bd_id = 2 : i32, task_id = 0 : i32}
      aie.use_lock(%lock_1_2_5, Release, %c1_i32)
      aie.next_bd ^bb6
    }
    %core_1_2 = aie.core(%tile_1_2) {
      %c0_i32 = arith.constant 0 : i32
      %c1_i32 = arith.constant 1 : i32
      %c64_i32 = arith.constant 64 : i32
      cf.br ^bb1
    ^bb1:  // 2 preds: ^bb0, ^bb1
      aie.use_lock(%lock_1_2_8, AcquireGreaterEqual, %c1_i32)
      aie.use_lock(%lock_1_2_7, AcquireGreaterEqual, %c1_i32)
      aie.use_lock(%lock_1_2_5, AcquireGreaterEqual, %c1_i32)
      func.call @matvec_blocks_f32_q4_1x64(%c1_i32, %c0_i32, %c64_i32, %buf6, %buf7, %buf5) : (i32, i32, i32, memref<1x5120xi8, 2>, memref<64xbf16, 2>, memref<2x64x16xf32, 2>) -> ()
      func.call @matvec_block_rows_bf16_q4_1x64(%buf5, %buf4) : (memref<2x64x16xf32, 2>, memref<32xbf16, 2>) -> ()
      aie.use_lock(%lock_1_2_6, Release, %c1_i32)
      aie.use_lock(%lock_1_2, Release, %c1_i32)
      aie.use_lock(%lock_1_2_9, Release, %c1_i32)
      cf.br ^bb1
    } {air.herd_local_id = array<i64: 1, 0>, air.herd_name = "gemv_herd", air.herd_size = array<i64: 2, 1>, link_files = ["weight_blocks_q4_1x64.o"], stack_size = 2048 : i32}
    %mem_0_2 = aie.mem(%tile_0_2) {
      %c1_i32 = arith.constant 1 : i32
      %0 = aie.dma_start(MM2S, 0, ^bb1, ^bb3)
    ^bb1:  // 2 preds: ^bb0, ^bb1
      aie.use_lock(%lock_0_2_4, AcquireGreaterEqual, %c1_i32)
      aie.dma_bd(%buf0 : memref<32xbf16, 2> offset = 0 len = 32) {bd_id = 0 : i32, next_bd_id = 0 : i32, task_id = 0 : i32}
      aie.use_lock(%lock_0_2_3, Release, %c1_i32)
      aie.next_bd ^bb1
    ^bb2:  // pred: ^bb5
      aie.end
    ^bb3:  // pred: ^bb0
      %1 = aie.dma_start(S2MM, 0, ^bb4, ^bb5)
    ^bb4:  // 2 preds: ^bb3, ^bb4
      aie.use_lock(%lock_0_2_1, AcquireGreaterEqual, %c1_i32)
      aie.dma_bd(%buf3 : memref<64xbf16, 2> offset = 0 len = 64) {bd_id = 1 : i32, next_bd_id = 1 : i32, task_id = 0 : i32}
      aie.use_lock(%lock_0_2_2, Release, %c1_i32)
      aie.next_bd ^bb4
    ^bb5:  // pred: ^bb3
      %2 = aie.dma_start(S2MM, 1, ^bb6, ^bb2)
    ^bb6:  // 2 preds: ^bb5, ^bb6
      aie.use_lock(%lock_0_2, AcquireGreaterEqual, %c1_i32)
      aie.dma_bd(%buf2 : memref<1x5120xi8, 2> offset = 0 len = 5120) {bd_id = 2 : i32, next_bd_id = 2 : i32, task_id = 0 : i32}
      aie.use_lock(%lock_0_2_0, Release, %c1_i32)
      aie.next_bd ^bb6
    }
    %core_0_2 = aie.core(%tile_0_2) {
      %c0_i32 = arith.constant 0 : i32
      %c1_i32 = arith.constant 1 : i32
      %c64_i32 = arith.constant 64 : i32
      cf.br ^bb1
    ^bb1:  // 2 preds: ^bb0, ^bb1
      aie.use_lock(%lock_0_2_3, AcquireGreaterEqual, %c1_i32)
      aie.use_lock(%lock_0_2_2, AcquireGreaterEqual, %c1_i32)
      aie.use_lock(%lock_0_2_0, AcquireGreaterEqual, %c1_i32)
      func.call @matvec_blocks_f32_q4_1x64(%c1_i32, %c0_i32, %c64_i32, %buf2, %buf3, %buf1) : (i32, i32, i32, memref<1x5120xi8, 2>, memref<64xbf16, 2>, memref<2x64x16xf32, 2>) -> ()
      func.call @matvec_block_rows_bf16_q4_1x64(%buf1, %buf0) : (memref<2x64x16xf32, 2>, memref<32xbf16, 2>) -> ()
      aie.use_lock(%lock_0_2_1, Release, %c1_i32)
      aie.use_lock(%lock_0_2, Release, %c1_i32)
      aie.use_lock(%lock_0_2_4, Release, %c1_i32)
      cf.br ^bb1
    } {air.herd_local_id = array<i64: 0, 0>, air.herd_name = "gemv_herd", air.herd_size = array<i64: 2, 1>, link_files = ["weight_blocks_q4_1x64.o"], stack_size = 2048 : i32}
    func.func private @matvec_blocks_f32_q4_1x64(i32, i32, i32, memref<1x5120xi8, 2>, memref<64xbf16, 2>, memref<2x64x16xf32, 2>) attributes {link_defines = "WEIGHT_BITS=4 matvec_blocks_f32=matvec_blocks_f32_q4_1x64 matvec_block_rows_bf16=matvec_block_rows_bf16_q4_1x64 unpack_blocks_bf16=unpack_blocks_bf16_q4_1x64", link_optimize = "O2", link_source = "weight_blocks.cc", link_with = "weight_blocks_q4_1x64.o", llvm.emit_c_interface}
    func.func private @matvec_block_rows_bf16_q4_1x64(memref<2x64x16xf32, 2>, memref<32xbf16, 2>) attributes {link_defines = "WEIGHT_BITS=4 matvec_blocks_f32=matvec_blocks_f32_q4_1x64 matvec_block_rows_bf16=matvec_block_rows_bf16_q4_1x64 unpack_blocks_bf16=unpack_blocks_bf16_q4_1x64", link_optimize = "O2", link_source = "weight_blocks.cc", link_with = "weight_blocks_q4_1x64.o", llvm.emit_c_interface}
    aie.flow(%shim_noc_tile_0_0, DMA : 1, %tile_1_2, DMA : 0)
    aie.shim_dma_allocation @air_channel_2_0(%shim_noc_tile_0_0, S2MM, 0)
    aie.shim_dma_allocation @air_channel_2_1(%shim_noc_tile_1_0, S2MM, 0)
    aie.shim_dma_allocation @air_channel_0(%shim_noc_tile_0_0, MM2S, 1)
    aie.shim_dma_allocation @air_channel_1_0(%shim_noc_tile_0_0, MM2S, 0)
    aie.shim_dma_allocation @air_channel_1_1(%shim_noc_tile_1_0, MM2S, 0)
    aie.runtime_sequence @gemv_segment_sequence(%arg0: memref<2x1x5120xi8>, %arg1: memref<64xbf16>, %arg2: memref<64xbf16>) {
      %0 = aiex.dma_configure_task_for @air_channel_2_0 {
        aie.dma_bd(%arg2 : memref<64xbf16> offset = 0 len = 32 sizes = [32] strides = [1])
        aie.end
      } {issue_token = true}
      aiex.dma_start_task(%0)
      %1 = aiex.dma_configure_task_for @air_channel_2_1 {
        aie.dma_bd(%arg2 : memref<64xbf16> offset = 32 len = 32 sizes = [32] strides = [1])
        aie.end
      } {issue_token = true}
      aiex.dma_start_task(%1)
      %2 = aiex.dma_configure_task_for @air_channel_0 {
        aie.dma_bd(%arg1 : memref<64xbf16> offset = 0 len = 64 sizes = [64] strides = [1])
        aie.end
      }
      aiex.dma_start_task(%2)
      %3 = aiex.dma_configure_task_for @air_channel_1_0 {
        aie.dma_bd(%arg0 : memref<2x1x5120xi8> offset = 0 len = 5120 sizes = [5120] strides = [1])
        aie.end
      }
      aiex.dma_start_task(%3)
      %4 = aiex.dma_configure_task_for @air_channel_1_1 {
        aie.dma_bd(%arg0 : memref<2x1x5120xi8> offset = 5120 len = 5120 sizes = [5120] strides = [1])
        aie.end
      }
      aiex.dma_start_task(%4)
      aiex.dma_await_task(%0)
      aiex.dma_await_task(%1)
      aiex.dma_free_task(%2)
      aiex.dma_free_task(%3)
      aiex.dma_free_task(%4)
    }
    aie.packet_flow(15) {
      aie.packet_source<%shim_noc_tile_1_0, TileControl : 0>
      aie.packet_dest<%shim_noc_tile_1_0, South : 0>
    } {keep_pkt_header = true, priority_route = true}
    aie.packet_flow(15) {
      aie.packet_source<%shim_noc_tile_0_0, TileControl : 0>
      aie.packet_dest<%shim_noc_tile_0_0, South : 0>
    } {keep_pkt_header = true, priority_route = true}
    %switchbox_0_0 = aie.switchbox(%shim_noc_tile_0_0) {
      aie.connect<South : 7, North : 2>
      aie.connect<South : 7, East : 3>
      aie.connect<South : 3, North : 1>
      aie.connect<North : 0, South : 2>
      %0 = aie.amsel<5> (3)
      %1 = aie.masterset(South : 0, %0) {is_ctrl_pkt_overlay, keep_pkt_header = true}
      aie.packet_rules(TileControl : 0) {
        aie.rule(31, 15, %0)
      } {is_ctrl_pkt_overlay}
    }
    %shim_mux_0_0 = aie.shim_mux(%shim_noc_tile_0_0) {
      aie.connect<DMA : 1, North : 7>
      aie.connect<DMA : 0, North : 3>
      aie.connect<North : 2, DMA : 0>
    }
    %mem_tile_0_1 = aie.tile(0, 1)
    %switchbox_0_1 = aie.switchbox(%mem_tile_0_1) {
      aie.connect<South : 2, North : 2>
      aie.connect<South : 1, North : 1>
      aie.connect<North : 0, South : 0>
    }
    %switchbox_0_2 = aie.switchbox(%tile_0_2) {
      aie.connect<South : 2, DMA : 0>
      aie.connect<South : 1, DMA : 1>
      aie.connect<DMA : 0, South : 0>
    }
    %switchbox_1_0 = aie.switchbox(%shim_noc_tile_1_0) {
      aie.connect<West : 3, North : 0>
      aie.connect<South : 3, North : 1>
      aie.connect<North : 2, South : 2>
      %0 = aie.amsel<5> (3)
      %1 = aie.masterset(South : 0, %0) {is_ctrl_pkt_overlay, keep_pkt_header = true}
      aie.packet_rules(TileControl : 0) {
        aie.rule(31, 15, %0)
      } {is_ctrl_pkt_overlay}
    }
    %mem_tile_1_1 = aie.tile(1, 1)
    %switchbox_1_1 = aie.switchbox(%mem_tile_1_1) {
      aie.connect<South : 0, North : 0>
      aie.connect<South : 1, North : 1>
      aie.connect<North : 2, South : 2>
    }
    %switchbox_1_2 = aie.switchbox(%tile_1_2) {
      aie.connect<South : 0, DMA : 0>
      aie.connect<South : 1, DMA : 1>
      aie.connect<DMA : 0, South : 2>
    }
    %shim_mux_1_0 = aie.shim_mux(%shim_noc_tile_1_0) {
      aie.connect<DMA : 0, North : 3>
      aie.connect<North : 2, DMA : 0>
    }
    aie.wire(%shim_mux_0_0 : North, %switchbox_0_0 : South)
    aie.wire(%shim_noc_tile_0_0 : DMA, %shim_mux_0_0 : DMA)
    aie.wire(%mem_tile_0_1 : Core, %switchbox_0_1 : Core)
    aie.wire(%mem_tile_0_1 : DMA, %switchbox_0_1 : DMA)
    aie.wire(%switchbox_0_0 : North, %switchbox_0_1 : South)
    aie.wire(%tile_0_2 : Core, %switchbox_0_2 : Core)
    aie.wire(%tile_0_2 : DMA, %switchbox_0_2 : DMA)
    aie.wire(%switchbox_0_1 : North, %switchbox_0_2 : South)
    aie.wire(%switchbox_0_0 : East, %switchbox_1_0 : West)
    aie.wire(%shim_mux_1_0 : North, %switchbox_1_0 : South)
    aie.wire(%shim_noc_tile_1_0 : DMA, %shim_mux_1_0 : DMA)
    aie.wire(%switchbox_0_1 : East, %switchbox_1_1 : West)
    aie.wire(%mem_tile_1_1 : Core, %switchbox_1_1 : Core)
    aie.wire(%mem_tile_1_1 : DMA, %switchbox_1_1 : DMA)
    aie.wire(%switchbox_1_0 : North, %switchbox_1_1 : South)
    aie.wire(%switchbox_0_2 : East, %switchbox_1_2 : West)
    aie.wire(%tile_1_2 : Core, %switchbox_1_2 : Core)
    aie.wire(%tile_1_2 : DMA, %switchbox_1_2 : DMA)
    aie.wire(%switchbox_1_1 : North, %switchbox_1_2 : South)
  } {dlti.dl_spec = #dlti.dl_spec<index = 32 : i64>}
  aie.device(npu2) {
    aie.runtime_sequence @gemv(%arg0: memref<2x1x5120xi8>, %arg1: memref<64xbf16>, %arg2: memref<64xbf16>) {
      aiex.configure @gemv_segment {
        aiex.run @gemv_segment_sequence(%arg0, %arg1, %arg2) : (memref<2x1x5120xi8>, memref<64xbf16>, memref<64xbf16>)
      }
    }
  }
}

