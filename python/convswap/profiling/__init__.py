"""What takes a GPU's time, by CUPTI: kernels, copies, calls, nodes, and the parts of AlexNet's."""
