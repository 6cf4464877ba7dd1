package e2e

import (
	"encoding/json"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/kvlend/kvlend/configs"
)

// TestReadmeReceipt: the README's request gives the receipt that the README shows,
// to the bit.
func TestReadmeReceipt(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	said := regexp.MustCompile(`"logits_hash": "([0-9a-f]{16})"(?s:.*?)"borrowed_blocks": (\d+)`).FindStringSubmatch(string(readme))
	if said == nil {
		t.Fatal("the README shows no receipt")
	}
	s := Start(t, func(c *configs.Config) {
		for i, m := range configs.Default().Models {
			c.Models[i].Source = m.Source // trained, as in the README
		}
	})
	var prompt []int
	for _, b := range []byte(strings.Repeat("abcdefgh", 562) + "abcdefg") {
		prompt = append(prompt, int(b))
	}
	body, err := json.Marshal(map[string]any{"model": "atlas", "max_tokens": 64, "prompt": prompt, "ignore_eos": true, "kvlend": true})
	if err != nil {
		t.Fatal(err)
	}
	res, err := s.post(t.Context(), "/v1/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"logits_hash":"` + said[1] + `"`, `"borrowed_blocks":` + said[2] + `,`} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("the answer lacks %s: %s", want, raw)
		}
	}
}
