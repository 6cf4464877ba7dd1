package main

import (
	"testing"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/internal/source"
	"github.com/kvlend/kvlend/planner"
)

// TestViewOfMuchMemory: no context is longer than the one that a model was made
// for, whatever memory there is.
func TestViewOfMuchMemory(t *testing.T) {
	c := configs.Default()
	for i := range c.Models {
		c.Models[i].Arena = 1 << 30
	}
	sys, err := planner.Resolve(c, source.Geometry)
	if err != nil {
		t.Fatal(err)
	}
	v, err := viewSystem(sys, false, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{"atlas": 32768, "birch": 16384, "cedar": 16384}
	for _, m := range v.Models {
		if m.MaxTokens != want[m.Name] || m.MaxTokensAlone != want[m.Name] {
			t.Errorf("%s: %d tokens, %d alone, want %d", m.Name, m.MaxTokens, m.MaxTokensAlone, want[m.Name])
		}
	}
}
