"""`aerie test-toolchain`: every program and kernel through upstream's compilers, stage by stage."""
