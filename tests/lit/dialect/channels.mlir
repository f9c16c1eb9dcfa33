// Channels: bundles, a broadcast, packets; a put and a get that are ordered by tokens.
// RUN: %air %s | %air - | filecheck %s

// CHECK:      air.channel @to [2, 2]
// CHECK-NEXT: air.channel @all [1, 1] {broadcast_shape = [2, 2]}
// CHECK-NEXT: air.channel @packets [1] {channel_type = "npu_dma_packet"}
air.channel @to [2, 2]
air.channel @all [1, 1] {broadcast_shape = [2, 2]}
air.channel @packets [1] {channel_type = "dma_packet"}

func.func @f(%in: memref<64x64xbf16>, %out: memref<64x64xbf16>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c32 = arith.constant 32 : index
  %c64 = arith.constant 64 : index
  // CHECK:      %ready = air.wait_all async
  // CHECK-NEXT: %sent = air.channel.put async [%ready] @to[%c0, %c1] (%in[%c0, %c32] [%c32, %c32] [%c64, %c1]) : (memref<64x64xbf16>)
  // CHECK-NEXT: %got = air.channel.get async [%ready, %sent] @to[%c0, %c1] (%out[] [] []) : (memref<64x64xbf16>)
  // CHECK-NEXT: air.wait_all [%got]
  %ready = air.wait_all async
  %sent = air.channel.put async [%ready] @to[%c0, %c1] (%in[%c0, %c32] [%c32, %c32] [%c64, %c1]) : (memref<64x64xbf16>)
  %got = air.channel.get async [%ready, %sent] @to[%c0, %c1] (%out[] [] []) : (memref<64x64xbf16>)
  air.wait_all [%got]
  return
}
