"""The first GPU of CUDA.

driver      finds it, and opens a context and a stream on it; management: its clocks, heat, throttling and energy
device      the device as the contract has it
"""
