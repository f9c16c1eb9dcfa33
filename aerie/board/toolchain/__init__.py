"""`aerie test-toolchain`: takes every program and kernel through upstream's compilers, stage by stage."""
