// dst = src, one core; a bare herd fed by channels whose L3 ends stand beside it in the function.
module {
  air.channel @c_in []
  air.channel @c_out []
  func.func @pass_through(%src: memref<64xbf16>, %dst: memref<64xbf16>) {
    %c1 = arith.constant 1 : index
    air.channel.put @c_in[] (%src[] [] []) : (memref<64xbf16>)
    air.herd tile (%tx, %ty) in (%sx = %c1, %sy = %c1) {
      %b = memref.alloc() : memref<64xbf16, 2>
      air.channel.get @c_in[] (%b[] [] []) : (memref<64xbf16, 2>)
      air.channel.put @c_out[] (%b[] [] []) : (memref<64xbf16, 2>)
      memref.dealloc %b : memref<64xbf16, 2>
    }
    air.channel.get @c_out[] (%dst[] [] []) : (memref<64xbf16>)
    return
  }
}
