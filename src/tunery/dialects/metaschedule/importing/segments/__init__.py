"""Which nodes of a network run in ONNX Runtime, and the models that they become."""
