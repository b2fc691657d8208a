"""The golden reference: what an MLA decode call means, in plain float64 torch.

Import the module you need, `from reference.decode import decode`. Nothing is re-exported here,
so that `reference.problem` stays importable without torch.
"""
