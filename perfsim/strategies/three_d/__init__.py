"""Tensor, pipeline and data parallelism composed, with ZeRO; and each of them alone."""
