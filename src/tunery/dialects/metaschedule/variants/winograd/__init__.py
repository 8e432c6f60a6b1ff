"""Convolutions by Winograd's algorithm: the program, and its design space."""
