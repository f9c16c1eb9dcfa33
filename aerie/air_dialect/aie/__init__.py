"""The dialects of what the compiler makes of AIR: `aie`, `aiex` and `aievec` (Xilinx/mlir-aie), in xDSL.

    array          devices, tiles, buffers, locks, cores
    dma            DMA programs: channels, buffer descriptors
    routing        flows, and the switches that realise them
    object_fifos   object FIFOs
    sequence       the runtime sequence, by which the host drives the array
    scratchpads    words of the host for cores and for offsets
    traces         what a board shall record, which is not looked at
    vectors        the vector operations of a core

Names of ports, directions and actions are strings, as the text has them.
"""
