# Two commands: `make demo` shows what this does, `make test` runs everything CI runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SETUP := $(VENV)/.installed

.PHONY: demo demo-serve test models pictures measure clean

demo: $(SETUP)
	@$(BIN)/causal-attn demo --out demo

demo-serve: $(SETUP)
	@$(BIN)/python scripts/demo_serve

test: $(SETUP)
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check_runtime

models: $(SETUP)
	$(BIN)/python scripts/make_models

pictures: $(SETUP)
	$(BIN)/python scripts/make_pictures

measure: $(SETUP)
	$(BIN)/python scripts/measure

# onnxruntime-gpu and onnxruntime own the same module, so the GPU extra is not installed here.
$(SETUP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .venv-runtime build dist demo .mypy_cache .ruff_cache .pytest_cache *.egg-info
