// REQUIRES: virtual_npu
// Two tiles that each wait for the other before they send.
// RUN: not %vnpu run %s --zeros 2>&1 | filecheck %s

// CHECK:      error: f: deadlock: nothing can make progress. Each of these 2 waits for the next one, the last for the first:
// CHECK-DAG:    herd @left (0, 0), line 15: get @back[0] (0 put so far, 0 in flight), until a put comes
// CHECK-DAG:    herd @right (0, 0), line 21: get @to[0] (0 put so far, 0 in flight), until a put comes
air.channel @to [1]
air.channel @back [1]
func.func @f(%a: memref<4xi32>) {
  air.segment @seg {
    %n1 = arith.constant 1 : index
    air.herd @left tile (%x, %y) in (%nx=%n1, %ny=%n1) {
      %l1 = memref.alloc() : memref<4xi32, 2>
      air.channel.get @back[] (%l1[] [] []) : (memref<4xi32, 2>)
      air.channel.put @to[] (%l1[] [] []) : (memref<4xi32, 2>)
      memref.dealloc %l1 : memref<4xi32, 2>
    }
    air.herd @right tile (%x, %y) in (%nx=%n1, %ny=%n1) {
      %l1 = memref.alloc() : memref<4xi32, 2>
      air.channel.get @to[] (%l1[] [] []) : (memref<4xi32, 2>)
      air.channel.put @back[] (%l1[] [] []) : (memref<4xi32, 2>)
      memref.dealloc %l1 : memref<4xi32, 2>
    }
  }
  return
}
