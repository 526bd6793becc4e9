"""The host side of each algorithm of ``kernels/``."""
