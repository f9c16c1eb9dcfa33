// What the body of a core holds: vectors, subviews, linalg on memrefs, loops that carry values.
#lhs = affine_map<(m, n, k) -> (m, k)>
#rhs = affine_map<(m, n, k) -> (k, n)>
#acc = affine_map<(m, n, k) -> (m, n)>
#shift = affine_map<(d0)[s0] -> (d0 * 8 + s0)>
#first = affine_set<(d0)[s0] : (d0 - s0 == 0, d0 >= 0)>
module {
  memref.global "private" constant @table : memref<4xi32> = dense<[0, 8, 16, 24]>
  memref.global @scratch : memref<4xi32, 2> = uninitialized {alignment = 64 : i64}
  func.func private @mv(memref<64xbf16, 2>, memref<16x64xbf16, strided<[64, 1], offset: ?>, 2 : i32>, i32) attributes {link_with = "mv.o", llvm.emit_c_interface}
  func.func @core(%dst: memref<64x64xf32, 2>, %src: memref<64x64xbf16, 2>, %vec: memref<64xbf16, 2>, %view2: memref<16x64xbf16, strided<[64, 1], offset: ?>, 2 : i32>, %n: i32) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c8 = arith.constant 8 : index
    %c64 = arith.constant 64 : index
    %pad = arith.constant 0.000000e+00 : bf16
    %scale = arith.constant 8.838834e-02 : f32
    %small = arith.constant -3.40282347E+38 : f32
    %inf = arith.constant 0xFF800000 : f32
    %zeros = arith.constant dense<0.000000e+00> : vector<8x8xf32>
    %mixed = arith.constant dense<[1.000000e+00, 2.500000e+00]> : vector<2xbf16>
    %indices = arith.constant dense<[0, 1, 2, 3]> : vector<4xindex>
    %lane = arith.constant dense<0xFF800000> : vector<8xf32>
    linalg.fill ins(%scale : f32) outs(%dst : memref<64x64xf32, 2>)
    %total = scf.for %i = %c0 to %c64 step %c8 iter_args(%sum = %zeros) -> (vector<8x8xf32>) {
      %row = affine.apply #shift(%i)[%c0]
      %a = vector.transfer_read %src[%i, %c0], %pad {in_bounds = [true, true]} : memref<64x64xbf16, 2>, vector<8x8xbf16>
      %t = vector.transfer_read %src[%row, %c0], %pad {in_bounds = [true, true], permutation_map = affine_map<(d0, d1) -> (d1, d0)>} : memref<64x64xbf16, 2>, vector<8x8xbf16>
      %b = vector.transpose %t, [1, 0] : vector<8x8xbf16> to vector<8x8xbf16>
      %af = arith.extf %a : vector<8x8xbf16> to vector<8x8xf32>
      %bf = arith.extf %b : vector<8x8xbf16> to vector<8x8xf32>
      %c = vector.contract {indexing_maps = [#lhs, #rhs, #acc], iterator_types = ["parallel", "parallel", "reduction"], kind = #vector.kind<add>} %af, %bf, %sum : vector<8x8xf32>, vector<8x8xf32> into vector<8x8xf32>
      scf.yield %c : vector<8x8xf32>
    } {air.unroll = 2 : i64}
    %flat = vector.shape_cast %total : vector<8x8xf32> to vector<64xf32>
    %sum = vector.reduction <add>, %flat : vector<64xf32> into f32
    %most = vector.reduction <maximumf>, %flat, %sum : vector<64xf32> into f32
    %rows = vector.multi_reduction <maximumf>, %total, %lane [1] : vector<8x8xf32> to vector<8xf32>
    %wide = vector.broadcast %rows : vector<8xf32> to vector<8x8xf32>
    %exp = math.exp %wide : vector<8x8xf32>
    %root = math.rsqrt %most : f32
    %power = math.exp2 %root : f32
    %tanh = math.tanh %power : f32
    %max = arith.maximumf %tanh, %root : f32
    %max1 = arith.maxnumf %max, %root fastmath<fast> : f32
    %cut = arith.truncf %exp : vector<8x8xf32> to vector<8x8xbf16>
    %one = vector.extract %cut[0, 3] : bf16 from vector<8x8xbf16>
    %part = vector.extract %cut[2] : vector<8xbf16> from vector<8x8xbf16>
    %put = vector.insert %one, %part[1] : bf16 into vector<8xbf16>
    %pair = vector.from_elements %one, %one : vector<2xbf16>
    %slice = vector.extract_strided_slice %put {offsets = [2], sizes = [4], strides = [1]} : vector<8xbf16> to vector<4xbf16>
    %back = vector.insert_strided_slice %slice, %put {offsets = [0], strides = [1]} : vector<4xbf16> into vector<8xbf16>
    vector.transfer_write %back, %vec[%c8] {in_bounds = [true]} : vector<8xbf16>, memref<64xbf16, 2>
    %loaded = vector.load %vec[%c0] : memref<64xbf16, 2>, vector<16xbf16>
    vector.store %loaded, %vec[%c8] : memref<64xbf16, 2>, vector<16xbf16>
    %fma = vector.fma %lane, %lane, %rows : vector<8xf32>
    %view = memref.subview %src[0, %c8] [16, 64] [1, 1] : memref<64x64xbf16, 2> to memref<16x64xbf16, strided<[64, 1], offset: ?>, 2>
    %cast = memref.cast %vec : memref<64xbf16, 2> to memref<?xbf16, 2>
    %shape = memref.expand_shape %vec [[0, 1]] output_shape [8, 8] : memref<64xbf16, 2> into memref<8x8xbf16, 2>
    %turn = memref.transpose %shape (d0, d1) -> (d1, d0) : memref<8x8xbf16, 2> to memref<8x8xbf16, strided<[1, 8]>, 2>
    %line = memref.collapse_shape %shape [[0, 1]] : memref<8x8xbf16, 2> into memref<64xbf16, 2>
    %again = memref.reinterpret_cast %vec to offset: [8], sizes: [4, 4], strides: [8, 1] : memref<64xbf16, 2> to memref<4x4xbf16, strided<[8, 1], offset: 8>, 2>
    memref.copy %line, %vec : memref<64xbf16, 2> to memref<64xbf16, 2>
    %dim = memref.dim %src, %c1 : memref<64x64xbf16, 2>
    affine.if #first(%c0)[%dim] {
      memref.store %one, %vec[%c0] : memref<64xbf16, 2>
    } else {
      %x = memref.load %vec[%c1] : memref<64xbf16, 2>
    }
    %least = affine.min affine_map<(d0) -> (64, d0 - 8)>(%c64)
    %largest = affine.max affine_map<(d0)[s0] -> (s0, d0 - 8)>(%c64)[%c8]
    %p = affine.load %vec[%c8 * 2 + 1] : memref<64xbf16, 2>
    affine.for %i = 0 to 64 step 8 {
      affine.store %p, %vec[%i] : memref<64xbf16, 2>
    }
    scf.parallel (%i, %j) = (%c0, %c0) to (%c8, %c8) step (%c1, %c1) {
      %y = arith.addi %i, %j : index
    }
    %found = scf.parallel (%i) = (%c0) to (%c8) step (%c1) init (%scale) -> f32 {
      scf.reduce(%scale : f32) {
      ^bb0(%l: f32, %r: f32):
        %s = arith.addf %l, %r : f32
        scf.reduce.return %s : f32
      }
    }
    scf.forall (%i, %j) in (4, %c8) {
      %y = arith.muli %i, %j : index
    } {mapping = []}
    scf.forall (%i) = (0) to (32) step (8) {
      %y = arith.muli %i, %i : index
    }
    %cmp = arith.cmpi slt, %c0, %c8 : index
    scf.if %cmp {
      func.call @mv(%vec, %view2, %n) : (memref<64xbf16, 2>, memref<16x64xbf16, strided<[64, 1], offset: ?>, 2 : i32>, i32) -> ()
    }
    linalg.copy ins(%line : memref<64xbf16, 2>) outs(%vec : memref<64xbf16, 2>)
    linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%line : memref<64xbf16, 2>) outs(%vec : memref<64xbf16, 2>) {
    ^bb0(%in: bf16, %out: bf16):
      %m = arith.mulf %in, %in : bf16
      linalg.yield %m : bf16
    }
    return
  }
}
