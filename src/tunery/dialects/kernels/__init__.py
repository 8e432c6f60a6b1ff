"""A user's own kernels, with tuning parameters and restrictions, in C with OpenMP or in OpenCL."""
