"""Many reports, one table: `torchtap selftest --merge FILE...`.

reading: files to records, and what is wrong with those that are none. comparing: groups of equal hosts, slow GPUs,
versions that differ; pure. drawing: the table. Nothing here imports torch or looks at this machine.
"""
