package supervisor

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAvailableMemory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meminfo")
	for text, want := range map[string]int64{
		"MemTotal: 10 kB\nMemAvailable:   2048 kB\nBuffers: 1 kB\n": 2 << 20,
		"MemTotal: 10 kB\n":         -1,
		"MemAvailable: plenty kB\n": -1,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := availableMemory(path)
		if (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
}
