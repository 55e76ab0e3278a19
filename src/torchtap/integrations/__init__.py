"""`torchtap.watch` in training frameworks. Each module imports its framework, so import the one that you use.

- `torchtap.integrations.lightning.WatchCallback`: for `Trainer(callbacks=[...])` of Lightning.
- `torchtap.integrations.transformers.WatchCallback`: for `Trainer(callbacks=[...])` of Hugging Face Transformers.
"""
