"""The test kit, for authors of dialects, devices, engines and blob stores; nothing of the product imports it.

Each contract has a suite that a subclass runs on its own implementation (`dialect_contract`, `device_contract`,
`engine_contract`, `blob_contract`), and a fake: `fake_dialect`, `fake_device`, `fake_blobs`, `fake_measuring` (a
clock and kernels for the rules of measuring), and `inline_engine`, whose workers are threads of the test's process.
"""
