"""The profiler on CUPTI: times of a GPU's kernels, copies and API calls, and of ONNX nodes."""
