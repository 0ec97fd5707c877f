package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
)

const copyUsage = `guard-exec copy puts rows in CSV into a table and completes the window, in one transaction.

  guard-exec copy --table shop.booking --columns account,units --header < booking.csv
      --table T         TABLE or SCHEMA.TABLE, as the database writes it
      --columns A,B     the columns, in the order of the rows (all of the table)
      --header          the first line names columns and is left out
      --null TEXT       what stands for NULL without quotes (nothing at all)
      --delimiter C     between the values (,)
      --file PATH|-     where the rows are (-, stdin)
      --rows N          nothing is committed unless there are N rows
` + statementUsage + `                        the statements run behind the rows
` + closingUsage + timeoutUsage + `
A pipe whose writer fails looks like a shorter file: write a file first, or say --rows.
--processed is the number of rows when nothing else is said. The answer is printed as JSON.
Exit codes: 0 committed; 1 refused, the answer says why;
75 not now, or the outcome is not known: exit with it, the next attempt finds out.
`

// copyRequest is what the command line asks for.
type copyRequest struct {
	query      string // of the URL
	file       string
	rows       *int64
	statements []statement
	end        fields
	timeout    time.Duration
}

// copyRows is the command: an interactive transaction of rows, statements and its commit.
func copyRows(ctx context.Context, args, env []string, stdin io.Reader, stdout io.Writer) (int, error) {
	c, err := parseCopy(args)
	if errors.Is(err, errHelp) {
		_, err = io.WriteString(stdout, copyUsage)
		return 0, err
	}
	if err != nil {
		return 0, err
	}
	r, err := endpoint(env)
	if err != nil {
		return 0, err
	}
	from := stdin
	if c.file != "-" {
		f, err := os.Open(c.file)
		if err != nil {
			return 0, usageError{fmt.Errorf("--file: %w", err)}
		}
		defer f.Close()
		from = f
	}
	var opened struct{ ID string }
	r.method, r.path, r.body = "POST", "/v1/tx", []byte("{}")
	if code, err := step(ctx, r, c.timeout, stdout, &opened); err != nil || code != 0 {
		return code, err
	}
	tx := "/v1/tx/" + opened.ID
	code, err := c.fill(ctx, r, tx, from, stdout)
	if err != nil || code != 0 {
		r.method, r.path, r.body = "DELETE", tx, nil
		_, _, _ = r.do(ctx, time.Now().Add(c.timeout)) // else it ends by itself
		return code, err
	}
	r.path = tx + "/commit"
	if r.body, err = json.Marshal(c.end); err != nil {
		return 0, err
	}
	return askAs(ctx, r, c.timeout, stdout, inTransaction)
}

// fill sends the rows, and the statements behind them. Nothing of it is sent again: what
// fails ends the transaction.
func (c copyRequest) fill(ctx context.Context, r request, tx string, from io.Reader, stdout io.Writer) (int, error) {
	var copied struct{ Rows int64 }
	r.path, r.body, r.stream = tx+"/copy?"+c.query, nil, from
	if code, err := step(ctx, r, 0, stdout, &copied); err != nil || code != 0 {
		return code, err
	}
	if c.rows != nil && *c.rows != copied.Rows {
		return 1, fmt.Errorf("there are %d rows, and --rows says %d; nothing is committed", copied.Rows, *c.rows)
	}
	if c.end["processed"] == nil && c.end["checkpoint"] == nil {
		c.end["processed"] = json.RawMessage(strconv.FormatInt(copied.Rows, 10))
	}
	r.stream, r.path = nil, tx+"/query"
	for _, s := range c.statements {
		var err error
		if r.body, err = json.Marshal(s); err != nil {
			return 0, err
		}
		if code, err := step(ctx, r, 0, stdout, nil); err != nil || code != 0 {
			return code, err
		}
	}
	return 0, nil
}

// step asks for one part and reads its answer into to; an answer that is an error is
// printed. Without a timeout it asks once.
func step(ctx context.Context, r request, timeout time.Duration, stdout io.Writer, to any) (int, error) {
	var answer bytes.Buffer
	var code int
	var err error
	if timeout > 0 {
		code, err = ask(ctx, r, timeout, &answer)
	} else {
		code, err = once(ctx, r, &answer)
	}
	if code != 0 || err != nil {
		_, writeErr := stdout.Write(answer.Bytes())
		return code, errors.Join(err, writeErr)
	}
	if to == nil {
		return 0, nil
	}
	if err := json.Unmarshal(answer.Bytes(), to); err != nil {
		return contract.ExitRetry, fmt.Errorf("the guard's answer cannot be read: %w", err)
	}
	return 0, nil
}

// sendWait bounds sending the beginning of a request that is sent once.
const sendWait = 30 * time.Second

// once asks once: a second time could do it twice, or cannot.
func once(ctx context.Context, r request, stdout io.Writer) (int, error) {
	code, body, err := r.do(ctx, time.Now().Add(sendWait))
	switch {
	case errors.Is(err, errInput):
		return 1, fmt.Errorf("%w; nothing is committed", err)
	case err != nil:
		return contract.ExitRetry, fmt.Errorf("no answer from the guard; nothing is committed: %w", err)
	}
	_, err = stdout.Write(append(bytes.TrimRight(body, "\n"), '\n'))
	exit, _ := inTransaction(code, body, nil)
	return exit, err
}

func parseCopy(args []string) (c copyRequest, err error) {
	c = copyRequest{file: "-", end: fields{}, timeout: 30 * time.Second}
	parameter := func(name string) flag {
		return flag{set: func(v string) error {
			c.query += "&" + name + "=" + escape(v)
			return utf(v)
		}}
	}
	table := ""
	header := false
	rest, err := flags{
		"table": text(&table), "columns": parameter("columns"), "null": parameter("null"), "delimiter": parameter("delimiter"),
		"header": yes(&header), "file": text(&c.file), "timeout": duration(&c.timeout),
		"rows": {set: func(v string) error {
			n, err := count(v)
			c.rows = &n
			return err
		}},
	}.and(statementFlags(&c.statements)).and(c.end.flags()).parse(args)
	switch {
	case err != nil:
		return c, err
	case len(rest) > 0:
		return c, usageError{fmt.Errorf("copy takes flags only, but there is %q", rest)}
	case table == "":
		return c, usageError{fmt.Errorf("--table is missing: it says where the rows go, as TABLE or SCHEMA.TABLE")}
	}
	c.query = "table=" + escape(table) + c.query
	if header {
		c.query += "&header=true"
	}
	return c, utf(table)
}
