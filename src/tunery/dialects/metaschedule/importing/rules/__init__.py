"""ONNX operators that are imported by our own rules, family by family; the definitions are ONNX's specification."""
