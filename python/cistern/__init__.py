"""Cistern for Python: `import cistern.torch; cistern.torch.install()` lets PyTorch allocate device memory with it.

Importing this package loads nothing; `cistern.torch` and `cistern.cupy` load libcistern_torch.so.
"""

__version__ = "0.1.0"
