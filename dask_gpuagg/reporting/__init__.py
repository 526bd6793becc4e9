"""Records of what ran and of what fell back, kept in each process."""
