"""One call's arguments and memory."""
