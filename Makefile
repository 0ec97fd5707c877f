# What a developer does with this tree. `make` lists it.

VERSION ?= $(shell sed -n 's/^appVersion: *//p' charts/onceguard/Chart.yaml)
ARCH    ?= $(shell go env GOARCH)
# Where images go: <IMAGE_PREFIX>onceguard-guard:<VERSION>
IMAGE_PREFIX ?= onceguard/
# Extra arguments of `go test`, e.g. TESTFLAGS='-run TestClaim -v', of the demo, e.g. DEMOFLAGS=--keep,
# and of one benchmark
TESTFLAGS ?=
DEMOFLAGS ?=
BENCHFLAGS ?=

BINARIES = guard guard-exec webhook kubectl-onceguard
DIST     = dist/linux-$(ARCH)
CERTS    = $(firstword $(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem))
HELM     = $$(test/tools.sh helm)
GOLANGCI = $$(test/tools.sh golangci-lint)

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' Makefile

.PHONY: build
build: binaries ## same as binaries

.PHONY: binaries
binaries: ## static programs for Linux into dist/
	@mkdir -p $(DIST)
	CGO_ENABLED=0 GOOS=linux GOARCH=$(ARCH) go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o $(DIST)/ $(BINARIES:%=./cmd/%)

.PHONY: plugin
plugin: ## kubectl-onceguard for this machine into dist/
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o dist/ ./cmd/kubectl-onceguard

.PHONY: images
images: binaries dist/ca-certificates.crt ## both images, with docker, podman or buildah (ENGINE=…)
	deploy/images.sh '$(IMAGE_PREFIX)' '$(VERSION)' '$(ARCH)'

dist/ca-certificates.crt: $(CERTS)
	@test -n '$(CERTS)' || { echo 'no bundle of certificate authorities found: install the package ca-certificates' >&2; exit 1; }
	@mkdir -p dist
	cp '$(CERTS)' $@

.PHONY: test
test: test-unit test-cluster ## everything: unit, Postgres and cluster tests

# Without Postgres the tests that need one are skipped on a laptop and fail where CI is set.
.PHONY: test-unit
test-unit: ## unit tests, and those against a private Postgres
	@test/setup.sh postgres drivers units || test -z "$$CI"
	go test -race -timeout 30m $(TESTFLAGS) $$(go list ./... | grep -v -e /test/e2e -e /test/demo -e /test/bench)
	cd test/openapi && go test -race $(TESTFLAGS) ./...
	go test -run '^TestProve' $(TESTFLAGS) ./pkg/guard # a million histories: the race detector would take ten times as long

.PHONY: test-cluster
test-cluster: ## end-to-end tests on a real cluster (KUBECONFIG=… for your own)
	@test/setup.sh postgres
	test/with-cluster.sh go test -tags e2e -p 1 -parallel 12 -count=1 -timeout 40m $(TESTFLAGS) ./test/e2e/... ./test/policies/...

# Every proof is a test named TestProve…; in `make test` it runs in a short form.
.PHONY: prove
prove: ## the safety claims at length, one line each (ONCEGUARD_SEED=… repeats a run)
	@test/setup.sh postgres
	test/prove.sh $(TESTFLAGS)

.PHONY: demo
demo: ## the whole story on a real cluster, with a table at the end (DEMOFLAGS=--keep)
	@test/setup.sh postgres
	test/with-cluster.sh go run ./test/demo $(DEMOFLAGS)

.PHONY: bench
bench: bench-ledger bench-engine ## both benchmarks, see docs/benchmarks.md

.PHONY: bench-ledger
bench-ledger: ## claim and commit against pgbench, as ratios
	@test/setup.sh postgres
	go run ./test/bench $(BENCHFLAGS)

.PHONY: bench-engine
bench-engine: ## the windows engine with 100,000 Jobs (BENCHFLAGS='-cronjobs 1000' is shorter)
	@test/setup.sh postgres
	test/bench/engine.sh $(BENCHFLAGS)

.PHONY: lint
lint: deploy-check ## formatting, vet, linters, chart, rendered manifests, shell scripts
	@test/setup.sh lint || test -z "$$CI"
	go vet -tags e2e ./...
	$(GOLANGCI) config verify
	$(GOLANGCI) fmt --diff
	$(GOLANGCI) run --allow-parallel-runners ./...
	cd test/cluster && go vet ./... && $$(../tools.sh golangci-lint) run --allow-parallel-runners ./...
	cd test/openapi && go vet ./... && $$(../tools.sh golangci-lint) run --allow-parallel-runners ./...
	cd examples/own-driver/go && go vet ./...
	$(HELM) lint --strict --quiet charts/onceguard --set migrate.secretName=x --set networkPolicy.enabled=true \
		--set 'migrate.engineRoles={x}' --set 'engine.namespaces={x}' --set 'engine.ledgers[0].name=x,engine.ledgers[0].secretName=x'
	@if command -v shellcheck >/dev/null; then shellcheck deploy/*.sh test/*.sh test/bench/*.sh test/drivers/*.sh examples/own-driver/psql/*.sh; else echo 'shellcheck is not installed: shell scripts were not checked'; fi

.PHONY: fmt
fmt: ## format all Go files
	$(GOLANGCI) fmt

.PHONY: deploy
deploy: ## render deploy/ from the chart
	deploy/render.sh "$(HELM)" deploy

.PHONY: deploy-check
deploy-check: ## fail when deploy/ is not what the chart renders
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && deploy/render.sh "$(HELM)" "$$fresh" && \
	for f in onceguard.yaml migrate.yaml; do \
		diff -u deploy/$$f "$$fresh/$$f" || { echo "deploy/$$f is stale: run make deploy" >&2; exit 1; }; \
	done

.PHONY: clean
clean: ## remove dist/
	rm -rf dist
