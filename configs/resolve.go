package configs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kvlend/kvlend/elastic"
)

// Defaults that depend on other values and so have no def tag.
const (
	defaultBuffers    = 1
	defaultPlacement  = "bandwidth"
	defaultAdmitAfter = 2
	defaultIOBuffers  = Bytes(32 << 20)
	defaultIOTimeout  = Duration(5 * time.Second)
	defaultWindow     = Duration(60 * time.Second)
	defaultQuantile   = Percent(99)
	defaultLow        = Percent(40)
	defaultHigh       = Percent(80)
)

// resolve fills in the defaults that depend on other values. What the file
// wrote is left alone, so that check can refuse it.
func (c *Config) resolve() {
	for i := range c.Models {
		if m := &c.Models[i]; m.Role == RoleMaster {
			m.resolve(func(key string) bool { return c.source.has(fmt.Sprintf("models[%d].%s", i, key)) })
		}
	}
	s := &c.Lending.ScaleDown
	wrote := func(key string) bool { return c.source.has("lending.scale_down." + key) }
	if !wrote("window") {
		s.Window = 0
		if s.Policy == elastic.DownWindow || s.Policy == elastic.DownQuantile {
			s.Window = defaultWindow
		}
	}
	if s.Policy == elastic.DownQuantile && !wrote("quantile") {
		s.Quantile = defaultQuantile
	}
	if s.Policy == elastic.DownHysteresis && !wrote("low") {
		s.Low = defaultLow
	}
	if s.Policy == elastic.DownHysteresis && !wrote("high") {
		s.High = defaultHigh
	}
}

// resolve fills in a master's defaults, that other models do not have.
func (m *Model) resolve(wrote func(key string) bool) {
	if !wrote("lsc.buffers") {
		m.LSC.Buffers = defaultBuffers
	}
	o := &m.Overflow
	if len(o.Devices) == 0 {
		o.Devices = nil
	}
	if !wrote("overflow.placement") {
		o.Placement = defaultPlacement
	}
	if !wrote("overflow.admit_after") {
		o.AdmitAfter = defaultAdmitAfter
	}
	if !wrote("overflow.buffers") {
		o.Buffers = defaultIOBuffers
	}
	if !wrote("overflow.timeout") {
		o.Timeout = defaultIOTimeout
	}
}

// Model returns the model called name and its index, which is its owner number
// in the unit tables; nil, -1 when there is none.
func (c *Config) Model(name string) (*Model, int) {
	for i := range c.Models {
		if c.Models[i].Name == name {
			return &c.Models[i], i
		}
	}
	return nil, -1
}

// Workers returns the workers that the master may borrow from, in config order.
func (c *Config) Workers(master *Model) []*Model {
	var out []*Model
	for i := range c.Models {
		if m := &c.Models[i]; borrows(master, m) {
			out = append(out, m)
		}
	}
	return out
}

// Masters returns the masters that may borrow from the worker, in config order.
func (c *Config) Masters(worker *Model) []*Model {
	var out []*Model
	for i := range c.Models {
		if m := &c.Models[i]; borrows(m, worker) {
			out = append(out, m)
		}
	}
	return out
}

func borrows(master, worker *Model) bool {
	return master.Role == RoleMaster && worker.Role == RoleWorker &&
		(len(master.BorrowFrom) == 0 || slices.Contains(master.BorrowFrom, worker.Name))
}

// Link returns the link that leads from one device to another.
func (c *Config) Link(from, to string) (Link, bool) {
	for _, l := range c.Links {
		if l.From == from && l.To == to || !l.OneWay && l.From == to && l.To == from {
			return l, true
		}
	}
	return Link{}, false
}

// Prefixes of Model.Source.
const (
	SourceBuiltin = "builtin:"
	SourceCatalog = "catalog:"
)

// Servable reports whether the model has weights, so that a process can serve
// it: everything but catalog models.
func (m *Model) Servable() bool { return !strings.HasPrefix(m.Source, SourceCatalog) }

// maxKey bounds a key file, in bytes.
const maxKey = 4096

// Keys returns the API keys with their values, reading those that lie in files.
func (g *Gateway) Keys() ([]APIKey, error) {
	keys := slices.Clone(g.APIKeys)
	for i := range keys {
		k := &keys[i]
		if k.File == "" {
			continue
		}
		var err error
		if k.Value, err = readKey(k.File); err != nil {
			return nil, fmt.Errorf("gateway.api_keys[%d]: %w", i, err)
		}
	}
	return keys, nil
}

func readKey(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxKey+1))
	if err != nil {
		return "", err
	}
	key := string(bytes.TrimSpace(text))
	switch {
	case key == "":
		return "", fmt.Errorf("%s holds no key", path)
	case len(text) > maxKey || strings.ContainsAny(key, "\r\n"):
		return "", errors.New(path + " holds more than one line of at most 4096 bytes")
	}
	return key, nil
}

// Options are the scale-down policy's parameters for elastic.NewScalePolicy.
func (s ScaleDown) Options() elastic.ScaleOptions {
	return elastic.ScaleOptions{
		Down:     s.Policy,
		Window:   s.Window.D(),
		Quantile: s.Quantile.Fraction(),
		Low:      s.Low.Fraction(),
		High:     s.High.Fraction(),
	}
}

// MarshalYAML writes the parameters of the chosen policy, zero or not.
func (s ScaleDown) MarshalYAML() (any, error) {
	out := struct {
		Policy   elastic.ScaleDownPolicy `yaml:"policy"`
		Window   *Duration               `yaml:"window,omitempty"`
		Quantile *Percent                `yaml:"quantile,omitempty"`
		Low      *Percent                `yaml:"low,omitempty"`
		High     *Percent                `yaml:"high,omitempty"`
	}{Policy: s.Policy}
	switch s.Policy {
	case elastic.DownWindow:
		out.Window = &s.Window
	case elastic.DownQuantile:
		out.Window, out.Quantile = &s.Window, &s.Quantile
	case elastic.DownHysteresis:
		out.Low, out.High = &s.Low, &s.High
	}
	return out, nil
}
