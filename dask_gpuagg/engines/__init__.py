"""The engines. Each has ``partial``, ``combine`` and ``finalize`` under the same names."""
