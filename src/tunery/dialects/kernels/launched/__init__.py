"""What kernels that are launched on a device have in common, in OpenCL and in CUDA.

sizes      how many work items there are; headers: what a source includes; delivery: the best kernel as a file
"""
