"""The types that kernels are specialised for, as text."""
