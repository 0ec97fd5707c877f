package localapi

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/commit"
)

// described is what the tests read of the document; test/openapi validates the rest.
type described struct {
	Paths      map[string]map[string]json.RawMessage `json:"paths"`
	Components struct {
		Responses map[string]response
		Schemas   struct {
			Failure struct {
				Properties struct {
					Error struct {
						Properties struct{ Code struct{ Enum []commit.Code } }
					}
				}
			}
		}
	} `json:"components"`
}

type operation struct {
	Security    *[]any
	RequestBody struct {
		Content map[string]struct {
			Examples map[string]struct{ Value json.RawMessage }
		}
	} `json:"requestBody"`
	Responses map[string]response
}

type response struct {
	Ref     string `json:"$ref"`
	Content map[string]struct {
		Schema struct {
			AllOf []struct {
				Properties struct {
					Error struct {
						Properties struct{ Code struct{ Enum []commit.Code } }
					}
				}
			} `json:"allOf"`
		}
	}
}

// codes are those that the response may have.
func (r response) codes() (codes []commit.Code) {
	for _, part := range r.Content["application/json"].Schema.AllOf {
		codes = append(codes, part.Properties.Error.Properties.Code.Enum...)
	}
	return codes
}

// operations gives the document's operations by "METHOD /path".
func operations(t *testing.T) (described, map[string]operation) {
	t.Helper()
	var d described
	if err := json.Unmarshal(openapi, &d); err != nil {
		t.Fatal(err)
	}
	all := map[string]operation{}
	for path, methods := range d.Paths {
		for method, raw := range methods {
			if method == "parameters" {
				continue
			}
			var o operation
			if err := json.Unmarshal(raw, &o); err != nil {
				t.Fatal(err)
			}
			for status, r := range o.Responses {
				if name, is := strings.CutPrefix(r.Ref, "#/components/responses/"); is {
					o.Responses[status] = d.Components.Responses[name]
				}
			}
			all[strings.ToUpper(method)+" "+path] = o
		}
	}
	return d, all
}

func TestTheDocumentHasEveryRoute(t *testing.T) {
	_, documented := operations(t)
	routes := map[string]bool{}
	h, ok := handler(nil, zap.NewNop()).(chi.Routes)
	if !ok {
		t.Fatal("the handler does not list its routes")
	}
	if err := chi.Walk(h, func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		routes[method+" "+route] = true
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	got, want := slices.Sorted(maps.Keys(documented)), slices.Sorted(maps.Keys(routes))
	if !slices.Equal(got, want) {
		t.Errorf("documented are\n%s\nserved are\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for name, o := range documented {
		method, path, _ := strings.Cut(name, " ")
		free := o.Security != nil && len(*o.Security) == 0
		res, _ := ask(t, h.(http.Handler), method, path, "", "")
		if refused := res.StatusCode == http.StatusUnauthorized; refused == free || (o.Responses["401"].Content == nil) != free {
			t.Errorf("%s without a token is %d; documented as free: %v", name, res.StatusCode, free)
		}
	}
}

// Every code stands at its status, and every code is the answer of some operation.
func TestTheDocumentHasEveryCodeAtItsStatus(t *testing.T) {
	d, documented := operations(t)
	seen := map[commit.Code]bool{codeNotFound: true, codeMethod: true} // of no operation
	for name, o := range documented {
		for status, r := range o.Responses {
			codes := r.codes()
			if (status < "400") != (len(codes) == 0) {
				t.Errorf("%s: %s has codes %v", name, status, codes)
			}
			for _, code := range codes {
				seen[code] = true
				if strconv.Itoa(statuses[code]) != status {
					t.Errorf("%s: %s is documented at %s, and has %d", name, code, status, statuses[code])
				}
			}
		}
	}
	want := slices.Sorted(maps.Keys(statuses))
	if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, want) {
		t.Errorf("documented are %v, known are %v", got, want)
	}
	if got := slices.Sorted(slices.Values(d.Components.Schemas.Failure.Properties.Error.Properties.Code.Enum)); !slices.Equal(got, want) {
		t.Errorf("a failure has one of %v, known are %v", got, want)
	}
}

func TestExamplesOfRequestsAreRead(t *testing.T) {
	_, documented := operations(t)
	read := map[string]func([]byte) error{
		"POST /v1/commit":         func(b []byte) error { _, err := commit.Parse(b); return err },
		"PUT /v1/checkpoint":      func(b []byte) error { _, err := commit.ParseCheckpoint(b); return err },
		"POST /v1/tx/{id}/query":  func(b []byte) error { _, err := commit.ParseStatement(b); return err },
		"POST /v1/tx/{id}/commit": func(b []byte) error { _, err := commit.ParseClosing(b); return err },
		"POST /v1/tx":             func(b []byte) error { return json.Unmarshal(b, &struct{}{}) },
	}
	for name, o := range documented {
		examples := o.RequestBody.Content["application/json"].Examples
		if (read[name] == nil) != (len(examples) == 0) {
			t.Errorf("%s has %d examples", name, len(examples))
		}
		for which, e := range examples {
			if err := read[name](e.Value); err != nil {
				t.Errorf("%s, example %s: %v", name, which, err)
			}
		}
	}
}
