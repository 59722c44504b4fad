"""Exporting models as ONNX graphs and `torch.export` programs, with dynamic image size if the architecture allows it."""
