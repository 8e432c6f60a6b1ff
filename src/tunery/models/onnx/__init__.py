"""ONNX files: read, made static, simplified."""
