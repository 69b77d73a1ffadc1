"""From an ExportedProgram to an ONNX file with its contract, checked."""
