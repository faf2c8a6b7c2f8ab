"""Model families. They import torch, and neither Ray nor the packages that use them."""
