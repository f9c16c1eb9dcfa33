// Launch, segment, herd: what goes in has a name of its own inside; sizes, attributes and tokens stay.
// RUN: %air %s | %air - | filecheck %s

// CHECK-LABEL: func.func @f
func.func @f(%a: memref<16xf32>) {
  %c2 = arith.constant 2 : index
  %c1 = arith.constant 1 : index
  // CHECK:      %before = air.wait_all async
  // CHECK-NEXT: %done = air.launch @step async [%before] (%i, %j) in (%ni=%c2, %nj=%c1) args(%a1=%a) : memref<16xf32> attributes {id = 1 : i32} {
  // CHECK-NEXT:   air.segment @seg args(%a2=%a1) : memref<16xf32> attributes {x_loc = 0 : i64, x_size = 4 : i64} {
  // CHECK-NEXT:     %n = arith.constant 4 : index
  // CHECK-NEXT:     air.herd @tiles tile (%x, %y) in (%nx=%n, %ny=%n) args(%a3=%a2) : memref<16xf32> attributes {link_with = "k.o"} {
  // CHECK-NEXT:       %at = arith.addi %x, %y : index
  // CHECK:      air.wait_all [%done]
  %before = air.wait_all async
  %done = air.launch @step async [%before] (%i, %j) in (%ni=%c2, %nj=%c1) args(%a1=%a) : memref<16xf32> attributes {id = 1 : i32} {
    air.segment @seg args(%a2=%a1) : memref<16xf32> attributes {x_loc = 0 : i64, x_size = 4 : i64} {
      %n = arith.constant 4 : index
      air.herd @tiles tile (%x, %y) in (%nx=%n, %ny=%n) args(%a3=%a2) : memref<16xf32> attributes {link_with = "k.o"} {
        %at = arith.addi %x, %y : index
      }
    }
  }
  air.wait_all [%done]
  return
}
