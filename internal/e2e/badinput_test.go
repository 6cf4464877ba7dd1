package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/engine/kernels"
)

func TestDamagedConfigIsRefused(t *testing.T) {
	good, err := os.ReadFile(writeConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		text string
		want []string
	}{
		"not YAML":     {"models: [", []string{"yaml"}},
		"empty":        {"", []string{"models"}},
		"unknown key":  {strings.Replace(string(good), "arena:", "arenna:", 1), []string{"arenna", "did you mean", "arena"}},
		"many at once": {strings.NewReplacer("threads: 0", "threads: -1", "max_running: 8", "max_running: 0").Replace(string(good)), []string{"threads", "max_running"}},
		"binary":       {"\x00\xff\xfe", []string{"kvlend:"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := tempDir(t)
			path := filepath.Join(dir, "c.yaml")
			if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			run := filepath.Join(dir, "r")
			mention(t, refused(t, 2, "up", "-c", path, "--run-dir", run), tc.want...)
			gone(t, run)
		})
	}
	mention(t, refused(t, 2, "up", "-c", "/does/not/exist.yaml"), "/does/not/exist.yaml")
	mention(t, refused(t, 2, "up", "--listne", "x"), "--listne")
	mention(t, refused(t, 2, "up", "now"), "takes no arguments")
	mention(t, refused(t, 2, "up", "--listen", "nowhere"), "gateway.listen", "nowhere")
	mention(t, refused(t, 2, "up", "--run-dir", "/tmp/"+strings.Repeat("x", 90)), "run_dir", "at most 60")
}

// TestDamagedModelIsRefused: a system with a broken model directory does not
// start, says which file is wrong, and leaves nothing behind.
func TestDamagedModelIsRefused(t *testing.T) {
	dir := filepath.Join(tempDir(t), "m")
	if out, err := exec.Command(kvlend, "model", "new", dir, "--like", "random-cedar").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	config := writeConfig(t, func(c *configs.Config) {
		c.Models = c.Models[2:]
		c.Models[0].Role, c.Models[0].Floor, c.Models[0].Source = configs.RoleLocal, 0, dir
	})
	weights := filepath.Join(dir, "model.safetensors")
	for _, tc := range []struct {
		name, file string
		damage     func([]byte) []byte
		want       []string
		quick      bool
	}{
		{"short weights", weights, func(b []byte) []byte { return b[:len(b)/2] }, []string{"model.safetensors"}, true},
		{"absurd header", weights, func(b []byte) []byte {
			binary.LittleEndian.PutUint64(b, 1<<62)
			return b
		}, []string{"model.safetensors", "header"}, false},
		{"overlapping tensors", weights, overlap, []string{"model.safetensors", "overlap"}, false},
		{"missing tensor", weights, func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"model.norm.weight"`), []byte(`"model.nrom.weight"`), 1)
		}, []string{"model.n"}, false},
		{"tokenizer", filepath.Join(dir, "tokenizer.json"), func(b []byte) []byte { return b[:len(b)-20] }, []string{"tokenizer.json"}, true},
		{"config", filepath.Join(dir, "config.json"), func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"num_hidden_layers": 5`), []byte(`"num_hidden_layers": -5`), 1)
		}, []string{"num_hidden_layers", "-5"}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if !tc.quick {
				needLong(t, "one more kind of damage")
			}
			good, err := os.ReadFile(tc.file)
			if err != nil {
				t.Fatal(err)
			}
			bad := tc.damage(bytes.Clone(good))
			if bytes.Equal(good, bad) {
				t.Fatal("nothing was damaged")
			}
			write(t, tc.file, bad)
			defer write(t, tc.file, good)
			run := filepath.Join(tempDir(t), "r")
			code := 1
			if tc.name == "config" {
				code = 2
			}
			mention(t, refused(t, code, "up", "-c", config, "--run-dir", run), tc.want...)
			gone(t, run)
		})
	}
	t.Run("undamaged", func(t *testing.T) {
		s := launch(t, filepath.Join(tempDir(t), "r"), "up", "-c", config)
		s.ready()
		q := Request{Model: "cedar", Prompt: text(1, 200), MaxTokens: 10}
		got, _, err := s.Complete(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		s.compare("the built-in model as a directory", q, got, kernels.BF16)
	})
}

// overlap lets two tensors of equal size share their bytes.
func overlap(b []byte) []byte {
	n := binary.LittleEndian.Uint64(b)
	header := map[string]map[string]any{}
	if err := json.Unmarshal(b[8:8+n], &header); err != nil {
		panic(err)
	}
	const name = "model.layers.%d.input_layernorm.weight"
	header[fmt.Sprintf(name, 1)]["data_offsets"] = header[fmt.Sprintf(name, 0)]["data_offsets"]
	text := must(json.Marshal(header))
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	return append(append(out, text...), b[8+n:]...)
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestHugeBody: 100 MB are refused, announced or not, and nobody reads them.
func TestHugeBody(t *testing.T) {
	s := Start(t)
	const size = 100 << 20
	for name, length := range map[string]int64{"announced": size, "chunked": -1} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.Endpoint+"/v1/completions",
			io.MultiReader(strings.NewReader(`{"model":"atlas","prompt":"`), io.LimitReader(letters{}, size-27)))
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = length
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Expect", "100-continue")
		res, err := (&http.Client{Transport: &http.Transport{ExpectContinueTimeout: 5 * time.Second, DisableKeepAlives: true}}).Do(req)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != http.StatusRequestEntityTooLarge || !strings.Contains(string(body), "16") {
			t.Errorf("%s: %s %s", name, res.Status, body)
		}
	}
	if rss := resident(t, s.GatewayPID); rss > overhead {
		t.Errorf("the gateway has %d bytes resident after it", rss)
	}
	s.all(prompts()[:3], 1, kernels.BF16)
}

// letters is an endless prompt.
type letters struct{}

func (letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'a'
	}
	return len(p), nil
}

// TestSlowClients: 1,000 connections that send nothing, half a header, half a
// body, or do not read their answers, hinder nobody, and are ended in time.
func TestSlowClients(t *testing.T) {
	const clients = 1000
	s := Start(t, func(c *configs.Config) { c.Gateway.ReadTimeout = configs.Duration(3 * time.Second) })
	address := strings.TrimPrefix(s.Endpoint, "http://")
	openings := []string{
		"",
		"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Le",
		"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"model\":",
	}
	var slow []net.Conn
	defer func() {
		for _, c := range slow {
			c.Close()
		}
	}()
	for i := range clients {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatalf("client %d: %v", i, err)
		}
		slow = append(slow, c)
		if _, err := io.WriteString(c, openings[i%len(openings)]); err != nil {
			t.Fatalf("client %d: %v", i, err)
		}
	}
	// A few that ask for long answers and never read them.
	for i := range 4 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		slow = append(slow, c)
		b := Request{Model: "birch", Prompt: text(uint64(i), 20), MaxTokens: 1000}.body(true)
		fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(b), b)
	}
	s.all(prompts(), 3, kernels.BF16)
	for i, c := range slow[:clients] {
		// Idle connections may stay as long as the server has room for them.
		if i%len(openings) == 0 {
			continue
		}
		c.SetReadDeadline(time.Now().Add(15 * time.Second))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("client %d, which never ends its request, was not ended", i)
		}
	}
	for _, c := range slow[clients:] {
		c.Close()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	q := prompts()[5]
	got, _, err := s.Complete(ctx, q)
	if err != nil {
		t.Fatal(err)
	}
	s.compare("after the slow ones", q, got, kernels.BF16)
}
