# Every target is one call of a program in scripts/; what they do and say is written, and tested, there.
# Variables are given as in `make up MODE=cpu JUPYTER_PORT=9000`, in the environment or in .env.

PYTHON ?= python3
ARGS ?=

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

##@ Use
.PHONY: up down url logs status shell ssh ssh-fingerprints selftest
up: ## start JupyterLab and SSH, on the GPU where there is one
	@$(PYTHON) scripts/up $(ARGS)
down: ## stop what runs; your code, home and keys stay
	@$(PYTHON) scripts/down $(ARGS)
url: ## print the link to JupyterLab, with its token
	@$(PYTHON) scripts/url $(ARGS)
logs: ## show the log, and follow it on a terminal
	@$(PYTHON) scripts/logs $(ARGS)
status: ## say what runs, how it is, and how its self-test ended
	@$(PYTHON) scripts/status $(ARGS)
shell: ## open a shell in the environment
	@$(PYTHON) scripts/shell $(ARGS)
ssh: ## log in over SSH (not in local mode)
	@$(PYTHON) scripts/ssh $(ARGS)
ssh-fingerprints: ## print the fingerprints of the host keys
	@$(PYTHON) scripts/ssh-fingerprints $(ARGS)
selftest: ## check GPU, driver, CUDA, PyTorch (LEVEL=full: longer)
	@$(PYTHON) scripts/selftest $(ARGS)

##@ Look first
.PHONY: help preflight
help: ## this list
	@$(PYTHON) scripts/help
preflight: ## check this host; say what `make up` would do, and why
	@$(PYTHON) scripts/preflight $(ARGS)

##@ Keep it well
.PHONY: update reset-env purge
update: ## build on a newer base, and replace what runs
	@$(PYTHON) scripts/update $(ARGS)
reset-env: ## remove what was installed with pip and uv (asks)
	@$(PYTHON) scripts/reset-env $(ARGS)
purge: ## remove container, volumes, images and .venv (asks)
	@$(PYTHON) scripts/purge $(ARGS)

##@ Work on Torchtap
.PHONY: build test test-image test-torch lint format notebooks refresh bench lock pin sbom audit clean
build: ## build the image and start nothing
	@$(PYTHON) scripts/build $(ARGS)
test: ## run every test this machine can run (ARGS="-k name")
	@$(PYTHON) scripts/test $(ARGS)
test-image: ## run the image tests of one variant (VARIANT=cu128)
	@$(PYTHON) scripts/test-image $(ARGS)
test-torch: ## the tests of modes on another PyTorch (TORCH=2.9.1)
	@$(PYTHON) scripts/test-torch $(ARGS)
lint: ## ruff, mypy, shellcheck and hadolint
	@$(PYTHON) scripts/lint
format: ## let ruff mend and format
	@$(PYTHON) scripts/lint --fix
notebooks: ## execute the notebooks, as the tests do
	@$(PYTHON) scripts/test -m notebook $(ARGS)
refresh: ## execute the notebooks, keep the outputs (ARGS=01-…)
	@$(PYTHON) scripts/venv --dev python -m tests.notebooks.refresh $(ARGS)
bench: ## measure (ARGS=image: one subject)
	@$(PYTHON) scripts/bench $(ARGS)
lock: ## remake the lock files (ARGS=--upgrade: newer versions)
	@$(PYTHON) scripts/venv --dev scripts/lock $(ARGS)
pin: ## pin the base images by digest (ARGS=--check, --unpin)
	@$(PYTHON) scripts/pin $(ARGS)
sbom: ## write what is in the image, in CycloneDX (ARGS=--help)
	@$(PYTHON) scripts/venv --dev scripts/sbom $(ARGS)
audit: ## look the locked packages up in the advisories
	@$(PYTHON) scripts/venv --dev scripts/audit $(ARGS)
clean: ## remove caches (ARGS=--all: .venv, images; never data)
	@$(PYTHON) scripts/clean $(ARGS)
