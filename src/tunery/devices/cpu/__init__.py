"""This machine's CPU as a device: cores, caches, load, clocks, placement and energy, as Linux tells them."""
