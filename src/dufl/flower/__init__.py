"""The same plan, buffers and learning on Flower; what is paid, and to whom."""
