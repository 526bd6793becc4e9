"""What only concerns clusters."""
