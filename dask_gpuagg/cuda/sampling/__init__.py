"""What is known of the keys before they are grouped: a sample, or earlier rows."""
