"""The generated corpus of acceptable and unacceptable sentences."""
