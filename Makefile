.DEFAULT_GOAL := help
.PHONY: lint
lint: ## ruff, mypy
	ruff check . && ruff format --check --exclude gen . && mypy
