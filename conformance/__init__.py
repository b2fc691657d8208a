"""The product: properties that any MLA decode kernel must satisfy, and how kernels plug in."""
