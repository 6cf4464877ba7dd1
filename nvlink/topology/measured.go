package topology

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// MeasuredVersion is the version of the format of measured links.
const MeasuredVersion = 1

// maxMeasured bounds a file of measured links, in bytes.
const maxMeasured = 4 << 20

// Measured is what a benchmark of a fabric found out about links. As a file it
// is JSON.
type Measured struct {
	Version int            `json:"version"`           // MeasuredVersion
	Fabric  string         `json:"fabric"`            // which was measured: "shm" or "cuda"
	Machine string         `json:"machine,omitempty"` // for people
	Taken   time.Time      `json:"taken"`
	Links   []MeasuredLink `json:"links"`
}

// MeasuredLink is one direction between two devices.
type MeasuredLink struct {
	// From and To are devices as a configuration names them or, better, UUIDs
	// of GPUs: what was measured on another GPU is then not taken for this one.
	From string `json:"from"`
	To   string `json:"to"`
	// BytesPerSec of batched copies, above zero.
	BytesPerSec float64 `json:"bytes_per_sec"`
	// Latency in nanoseconds until the first byte arrives.
	Latency time.Duration `json:"latency_ns,omitempty"`
	// PieceBytes is the size of the pieces that were copied.
	PieceBytes int64 `json:"piece_bytes,omitempty"`
}

// ParseMeasured reads measured links and checks them.
func ParseMeasured(r io.Reader) (*Measured, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxMeasured+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxMeasured {
		return nil, fmt.Errorf("more than %d bytes", maxMeasured)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	m := new(Measured)
	if err := dec.Decode(m); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the measured links")
	}
	return m, m.check()
}

// LoadMeasured reads the file at path.
func LoadMeasured(path string) (*Measured, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("measured links: %w", err)
	}
	defer f.Close()
	m, err := ParseMeasured(f)
	if err != nil {
		return nil, fmt.Errorf("measured links in %s: %w", path, err)
	}
	return m, nil
}

func (m *Measured) check() error {
	if m.Version != MeasuredVersion {
		return fmt.Errorf("version is %d, want %d", m.Version, MeasuredVersion)
	}
	seen := make(map[[2]string]bool, len(m.Links))
	for i, l := range m.Links {
		if l.From == "" || l.To == "" || l.From == l.To {
			return fmt.Errorf("links[%d]: from %q to %q; want two different devices", i, l.From, l.To)
		}
		if seen[[2]string{l.From, l.To}] {
			return fmt.Errorf("links[%d]: %q to %q is given twice", i, l.From, l.To)
		}
		seen[[2]string{l.From, l.To}] = true
		if err := l.Link(l.From, l.To).check(); err != nil {
			return fmt.Errorf("links[%d]: %w", i, err)
		}
	}
	return nil
}

// Link is the measured link between two devices of a configuration.
func (l MeasuredLink) Link(from, to string) Link {
	return Link{From: from, To: to, BytesPerSec: l.BytesPerSec, Latency: l.Latency, Source: FromMeasured}
}

// Write writes measured links as ParseMeasured reads them.
func (m *Measured) Write(w io.Writer) error {
	if err := m.check(); err != nil {
		return fmt.Errorf("measured links: %w", err)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(m)
}
