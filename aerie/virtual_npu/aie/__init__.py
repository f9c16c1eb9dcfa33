"""The AIE level: modules with `aie.device`, what the compiler makes of AIR programs, or anybody's designs.

    design         a device as tables: buffers, locks, descriptors, channels, routes, cores
    routes         from flows, or from the connections and rules of switches, to routes
    object_fifos   object FIFOs as buffers, locks, descriptors and flows
    cores          the C++ of cores
    vectors        the C++ of vectors in cores
    memory_use     whether buffers and stacks have room
    sequence       the C++ of runtime sequences
    registers      the C++ of operations that write registers
    module         the C++ of a module

What runs it is in include/vnpu/aie.
"""
