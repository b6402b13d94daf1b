"""One thread: the pages are tiny, and tests run beside each other."""

try:
    import torch
except ImportError:
    pass
else:
    torch.set_num_threads(1)
