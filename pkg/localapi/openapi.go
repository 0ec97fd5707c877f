package localapi

import (
	_ "embed"
	"net/http"
)

// openapi describes the endpoint: OpenAPI 3, checked against the routes and their answers.
//
//go:embed openapi.json
var openapi []byte

// document is the answer to GET /openapi.json, which needs no token: it has no secret.
func (a api) document(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(openapi)
}
