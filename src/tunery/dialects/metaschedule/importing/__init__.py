"""From an ONNX network to TIR tasks: import, layout, folding and lowering."""
