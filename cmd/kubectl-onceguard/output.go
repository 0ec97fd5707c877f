package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

const (
	outputTable = "table"
	outputJSON  = "json"
)

func (p *program) outputFlag(c *cobra.Command, output *string) {
	c.Flags().StringVarP(output, "output", "o", outputTable, "table or json")
}

func checkOutput(output string) error {
	if output != outputTable && output != outputJSON {
		return usagef("-o %q: must be table or json", output)
	}
	return nil
}

func (p *program) printJSON(v any) error {
	enc := json.NewEncoder(p.stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// none stands where there is no value.
const none = "-"

// instant is UTC, with its zone, to the second: windows begin at whole seconds.
func instant(t *time.Time) string {
	if t == nil {
		return none
	}
	return t.UTC().Format(time.RFC3339)
}

// seconds is a duration as people read it: 830ms, 2.4s, 3m7s.
func seconds(s *float64) string {
	if s == nil {
		return none
	}
	d := time.Duration(*s * float64(time.Second))
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	default:
		return d.Round(time.Second).String()
	}
}

func number(n *int64) string {
	if n == nil {
		return none
	}
	return strconv.FormatInt(*n, 10)
}

func text(s *string) string {
	if s == nil || *s == "" {
		return none
	}
	return printable(*s)
}

// ending is how an attempt ended: "failed (42): no space left".
func ending(outcome *string, code *int, message *string) string {
	s := text(outcome)
	if code != nil {
		s += " (" + strconv.Itoa(*code) + ")"
	}
	if message != nil && *message != "" {
		s += ": " + printable(*message)
	}
	return s
}

// printable keeps a worker's message from moving the terminal's cursor or breaking
// the table.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

const (
	// tableWidth is what a table's last column is shortened to, in characters: one line
	// of a common terminal.
	tableWidth = 120
	// leastLast is what is always left of it.
	leastLast = 24
)

// table prints rows in columns, the first row as the head. Its lines are at most
// tableWidth wide, unless all but the last column need more.
func (p *program) table(rows [][]string) error {
	last := len(rows[0]) - 1
	width := make([]int, last)
	room := tableWidth
	for i := range width {
		for _, r := range rows {
			width[i] = max(width[i], utf8.RuneCountInString(r[i]))
		}
		room -= width[i] + 2
	}
	for _, r := range rows {
		var b strings.Builder
		for i, w := range width {
			b.WriteString(r[i] + strings.Repeat(" ", w-utf8.RuneCountInString(r[i])+2))
		}
		b.WriteString(shorten(r[last], max(room, leastLast)))
		if _, err := fmt.Fprintln(p.stdout, strings.TrimRight(b.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

func shorten(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}
