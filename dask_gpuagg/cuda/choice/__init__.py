"""From a summary of the keys to a kernel and its geometry; numbers, no launches."""
