"""Host partitions on the GPU: copied tile by tile while the kernels work on the tile before."""
