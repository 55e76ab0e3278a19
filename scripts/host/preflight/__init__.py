"""`make preflight`: is this host fit for Torchtap, and if not, what is the one thing to do?

Facts are gathered (facts), judged by a table of checks (checks: pure), told with causes (causes), and shown (page,
main). No root, no torch, no `.venv` and no Docker is needed; each program that is asked has a time limit, and nothing
is changed. Statuses, results and the judging of nvidia-smi are the self-test's own (torchtap.selftest).
"""
