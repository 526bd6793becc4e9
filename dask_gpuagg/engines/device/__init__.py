"""The device engine: cuDF partitions, on our kernels and libcudf."""
