"""Compiling by NVRTC, loading and launching by the CUDA driver."""
