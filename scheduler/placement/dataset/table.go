// Package dataset reads the public traces that the study replays, and writes generated ones of the same shape.
package dataset

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
)

// row is one line of a CSV file, read column by column. The first error is kept; it names line and column.
type row struct {
	table  *table
	fields []string
	err    error
}

type table struct {
	name    string
	columns map[string]int
	reader  *csv.Reader
}

// readTable calls visit for each row of a CSV file, which must have at least these columns.
func readTable(name string, r io.Reader, columns []string, visit func(*row) error) error {
	t := &table{name: name, columns: map[string]int{}, reader: csv.NewReader(r)}
	header, err := t.reader.Read()
	if err != nil {
		return fmt.Errorf("%s: read the header: %w", name, err)
	}
	for i, column := range header {
		t.columns[column] = i
	}
	for _, column := range columns {
		if !slices.Contains(header, column) {
			return fmt.Errorf("%s: line 1: no column %q", name, column)
		}
	}
	for {
		fields, err := t.reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		one := &row{table: t, fields: fields}
		if err := visit(one); err != nil {
			line, _ := t.reader.FieldPos(0)
			return fmt.Errorf("%s: line %d: %w", name, line, err)
		}
		if one.err != nil {
			return one.err
		}
	}
}

func (r *row) text(column string) string {
	return r.fields[r.table.columns[column]]
}

func (r *row) fail(column, why string) {
	if r.err == nil {
		field := r.table.columns[column]
		line, at := r.table.reader.FieldPos(field)
		r.err = fmt.Errorf("%s: line %d, column %d: %s %s, got %q", r.table.name, line, at, column, why, r.fields[field])
	}
}

// number reads a finite number of at least 0.
func (r *row) number(column string) float64 {
	value, err := strconv.ParseFloat(r.text(column), 64)
	if err != nil || math.IsNaN(value) || math.IsInf(value, 0) || value < 0 {
		r.fail(column, "must be a number >= 0")
		return 0
	}
	return value
}

// count reads an integer of at least 0.
func (r *row) count(column string) int {
	value, err := strconv.Atoi(r.text(column))
	if err != nil || value < 0 {
		r.fail(column, "must be a whole number >= 0")
		return 0
	}
	return value
}

// time reads seconds. An empty field or NaN is a time outside the trace, for which it returns missing.
func (r *row) time(column string, missing float64) float64 {
	text := r.text(column)
	if text == "" {
		return missing
	}
	value, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil || math.IsInf(value, 0) || value < 0:
		r.fail(column, "must be seconds >= 0, empty or NaN")
		return missing
	case math.IsNaN(value):
		return missing
	default:
		return value
	}
}
