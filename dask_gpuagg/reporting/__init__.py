"""Records of kernel runs and of fallbacks, kept in each process."""
