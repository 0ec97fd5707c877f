package localapi

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/commit"
)

// opened is the answer to POST /v1/tx.
type opened struct {
	ID          string  `json:"id"`
	IdleSeconds float64 `json:"idle_seconds"` // without a request for so long it is rolled back
}

func (a api) open(w http.ResponseWriter, r *http.Request) {
	log := a.attemptLog()
	body, ok := a.read(w, r)
	if !ok {
		return
	}
	if b := bytes.Join(bytes.Fields(body), nil); len(b) > 0 && string(b) != "{}" {
		a.failf(w, commit.Invalid, "POST /v1/tx takes no body; statements go to POST /v1/tx/{id}/query")
		return
	}
	tx, err := a.o.Committer.Open(r.Context())
	if err != nil {
		a.refuse(w, log, err)
		return
	}
	log.Info("opened a transaction", zap.String("transaction", tx.ID))
	a.answer(w, http.StatusCreated, opened{tx.ID, tx.Idle.Seconds()})
}

func (a api) query(w http.ResponseWriter, r *http.Request) {
	log := a.attemptLog()
	body, ok := a.read(w, r)
	if !ok {
		return
	}
	statement, err := commit.ParseStatement(body)
	if err != nil {
		a.refuse(w, log, err)
		return
	}
	rows, err := a.o.Committer.Query(r.Context(), chi.URLParam(r, "id"), statement)
	if err != nil {
		a.refuse(w, log, err)
		return
	}
	a.answer(w, http.StatusOK, rows)
}

func (a api) copy(w http.ResponseWriter, r *http.Request) {
	log, start := a.attemptLog(), time.Now()
	to, err := parseCopy(r)
	if err == nil {
		var n int64
		rows := stream{r.Body, http.NewResponseController(w)}
		_ = rows.conn.SetReadDeadline(time.Time{}) // package commit bounds the wait for each part
		if n, err = a.o.Committer.Copy(r.Context(), chi.URLParam(r, "id"), to, rows); err == nil {
			log.Info("copied rows", zap.Int64("rows", n), zap.Duration("took", time.Since(start)))
			a.answer(w, http.StatusOK, map[string]int64{"rows": n})
			return
		}
	}
	w.Header().Set("Connection", "close") // the rest of the rows is not wanted
	a.refuse(w, log, err)
}

func (a api) finish(w http.ResponseWriter, r *http.Request) {
	log := a.attemptLog()
	body, ok := a.read(w, r)
	if !ok {
		return
	}
	end, err := commit.ParseClosing(body)
	if err != nil {
		a.refuse(w, log, err)
		return
	}
	id := chi.URLParam(r, "id")
	answer, err := a.o.Committer.Finish(r.Context(), id, end)
	if err != nil {
		a.refuse(w, log, err)
		return
	}
	a.made(w, log.With(zap.String("transaction", id)), answer)
}

func (a api) drop(w http.ResponseWriter, r *http.Request) {
	if err := a.o.Committer.Drop(r.Context(), chi.URLParam(r, "id")); err != nil {
		a.refuse(w, a.attemptLog(), err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// stream is a body whose Read can be ended.
type stream struct {
	body interface{ Read([]byte) (int, error) }
	conn *http.ResponseController
}

func (s stream) Read(p []byte) (int, error) { return s.body.Read(p) }

func (s stream) Interrupt() { _ = s.conn.SetReadDeadline(time.Unix(1, 0)) }

// parseCopy reads where the rows go.
func parseCopy(r *http.Request) (to commit.Copy, err error) {
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return to, refusal("Content-Encoding is %q; send the rows as they are", e)
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return to, refusal("the parameters cannot be read; write them as table=TABLE&columns=a,b")
	}
	for name, values := range query {
		if len(values) > 1 {
			return to, refusal("%s is given %d times; give it once", name, len(values))
		}
		switch value := values[0]; name {
		case "table":
			to.Table = value
		case "columns":
			to.Columns = strings.Split(value, ",")
		case "header":
			if to.Header, err = strconv.ParseBool(value); err != nil {
				return to, refusal("header is %q; it must be true or false", value)
			}
		case "null":
			to.Null = value
		case "delimiter":
			to.Delimiter = value
		default:
			return to, refusal("parameter %q is not known; known are table, columns, header, null and delimiter", name)
		}
	}
	return to, nil
}

func refusal(format string, args ...any) error {
	return &commit.Error{Code: commit.Invalid, Message: fmt.Sprintf(format, args...)}
}
