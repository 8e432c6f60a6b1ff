"""The first device of an OpenCL platform: PoCL's runs on the cores of this machine, and is shaped like a GPU."""
