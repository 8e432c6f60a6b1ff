"""Which nodes of a network run in ONNX Runtime, by what a compiled network computes and takes."""
