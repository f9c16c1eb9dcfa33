// What a core computes with: vectors, their casts and transfers, loops that carry a value, an external function.
// RUN: %air %s | %air - | filecheck %s

// CHECK: func.func private @k(memref<16xbf16, 2>, i32) -> () attributes {link_with = "k.o", llvm.emit_c_interface}
func.func private @k(memref<16xbf16, 2>, i32) attributes {link_with = "k.o", llvm.emit_c_interface}

// CHECK-LABEL: func.func @f
func.func @f(%buffer: memref<16xbf16, 2>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %n = arith.constant 16 : i32
  // CHECK:      %zero = arith.constant dense<0.000000e+00> : vector<16xf32>
  // CHECK-NEXT: %sum = scf.for %i = %c0 to %c4 step %c1 iter_args(%acc = %zero) -> (vector<16xf32>) {
  // CHECK-NEXT:   %v = vector.load %buffer[%c0] : memref<16xbf16, 2>, vector<16xbf16>
  // CHECK-NEXT:   %wide = arith.extf %v : vector<16xbf16> to vector<16xf32>
  // CHECK-NEXT:   %next = arith.addf %acc, %wide : vector<16xf32>
  // CHECK-NEXT:   scf.yield %next : vector<16xf32>
  // CHECK-NEXT: }
  // CHECK-NEXT: %narrow = arith.truncf %sum : vector<16xf32> to vector<16xbf16>
  // CHECK-NEXT: vector.store %narrow, %buffer[%c0] : memref<16xbf16, 2>, vector<16xbf16>
  // CHECK-NEXT: func.call @k(%buffer, %n) : (memref<16xbf16, 2>, i32) -> ()
  %zero = arith.constant dense<0.0> : vector<16xf32>
  %sum = scf.for %i = %c0 to %c4 step %c1 iter_args(%acc = %zero) -> (vector<16xf32>) {
    %v = vector.load %buffer[%c0] : memref<16xbf16, 2>, vector<16xbf16>
    %wide = arith.extf %v : vector<16xbf16> to vector<16xf32>
    %next = arith.addf %acc, %wide : vector<16xf32>
    scf.yield %next : vector<16xf32>
  }
  %narrow = arith.truncf %sum : vector<16xf32> to vector<16xbf16>
  vector.store %narrow, %buffer[%c0] : memref<16xbf16, 2>, vector<16xbf16>
  func.call @k(%buffer, %n) : (memref<16xbf16, 2>, i32) -> ()
  return
}
