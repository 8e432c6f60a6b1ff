"""Torch programs: converted to ONNX in a process of their own."""
