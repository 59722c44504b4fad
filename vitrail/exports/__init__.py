"""Graphs that leave PyTorch: ONNX and `torch.export` programs, for images of any size where the architecture allows it."""
