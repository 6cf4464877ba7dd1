package copybw

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
)

// WriteTable prints the report for people: bandwidth of the plain copy, each
// variant's share of it, and the extra cost of a piece.
func (r *Report) WriteTable(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "shm fabric, %s, %s, %d cores, median of %d rounds\n\n", r.Go, r.Arch, r.Cores, r.Rounds); err != nil {
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(tw, "piece\tpieces\tplain GB/s\t")
	for _, v := range variants[1:] {
		fmt.Fprintf(tw, "%s\t", v)
	}
	fmt.Fprint(tw, "batched ns/piece\tsingle ns/piece\twaited ns/piece\t\n")
	for _, row := range r.Rows {
		fmt.Fprintf(tw, "%s\t%d\t%.1f\t", size(row.PieceBytes), row.Pieces, row.Results[Plain].GBPerSec)
		for _, v := range variants[1:] {
			fmt.Fprintf(tw, "%.0f%%\t", 100*row.Results[v].Share)
		}
		for _, v := range []string{Batched, Single, Waited} {
			fmt.Fprintf(tw, "%+.0f\t", row.Results[v].ExtraNanos)
		}
		fmt.Fprintln(tw)
	}
	// Writes to tw cannot fail before Flush.
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprint(w, legend)
	return err
}

const legend = `
Shares are of the plain copy (copy() of the same pieces on one goroutine, measured in turn).
batched: one list; single: a list per piece; waited: a list and an event per piece;
cross: batched, other mappings of the same memory; cold: cross, with no page mapped yet;
split: batched, two goroutines. ns/piece: what a piece costs beyond its plain copy.
`

func size(n int64) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

// WriteJSON writes the report as indented JSON.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}
