package safetensors

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// The file names of a checkpoint directory.
const (
	SingleFile = "model.safetensors"
	IndexFile  = "model.safetensors.index.json"
)

// Checkpoint is the set of tensors of one file or of a sharded directory. Its
// methods may be called concurrently, except Close.
type Checkpoint struct {
	tensors map[string]*Tensor
	names   []string // sorted
	maps    [][]byte
	files   []string
}

// Open maps one file.
func Open(path string) (*Checkpoint, error) {
	c := &Checkpoint{tensors: map[string]*Tensor{}}
	if err := c.add(path); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	c.finish()
	return c, nil
}

// FromBytes is a checkpoint of one file's bytes, which the tensors alias; file
// is used in errors and listed by Files.
func FromBytes(file string, data []byte) (*Checkpoint, error) {
	c := &Checkpoint{tensors: map[string]*Tensor{}}
	if err := c.take(file, data); err != nil {
		return nil, err
	}
	c.finish()
	return c, nil
}

// OpenDir maps the checkpoint of a Hugging Face directory: model.safetensors
// if there is one, else the shards that model.safetensors.index.json names.
func OpenDir(dir string) (*Checkpoint, error) {
	single := filepath.Join(dir, SingleFile)
	if _, err := os.Stat(single); err == nil {
		return Open(single)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	return openSharded(dir)
}

// Names lists the tensors in sorted order.
func (c *Checkpoint) Names() []string { return slices.Clone(c.names) }

// Files lists the paths of the checkpoint's files.
func (c *Checkpoint) Files() []string { return slices.Clone(c.files) }

// Tensor finds a tensor by name.
func (c *Checkpoint) Tensor(name string) (*Tensor, bool) {
	t, ok := c.tensors[name]
	return t, ok
}

// Bytes is the size of all tensors together.
func (c *Checkpoint) Bytes() int64 {
	var n int64
	for _, t := range c.tensors {
		n += int64(len(t.Data))
	}
	return n
}

// Close unmaps the files; the tensors' Data must not be used afterwards.
func (c *Checkpoint) Close() error {
	var err error
	for _, m := range c.maps {
		err = errors.Join(err, unix.Munmap(m))
	}
	c.maps, c.tensors, c.names = nil, map[string]*Tensor{}, nil
	return err
}

// add maps path and takes its tensors.
func (c *Checkpoint) add(path string) error {
	m, err := mapFile(path)
	if err != nil {
		return err
	}
	if len(m) > 0 {
		c.maps = append(c.maps, m)
	}
	return c.take(path, m)
}

// take adds the tensors of a file's bytes.
func (c *Checkpoint) take(path string, data []byte) error {
	content, err := Parse(path, data)
	if err != nil {
		return err
	}
	for i := range content.Tensors {
		t := &content.Tensors[i]
		if other, ok := c.tensors[t.Name]; ok {
			return &FormatError{File: path, Tensor: t.Name, Field: "name",
				Value: "also in " + other.File, Want: "each tensor in one shard"}
		}
		c.tensors[t.Name] = t
	}
	c.files = append(c.files, path)
	return nil
}

func (c *Checkpoint) finish() { c.names = slices.Sorted(maps.Keys(c.tensors)) }

func mapFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	if !st.Mode().IsRegular() {
		return nil, &FormatError{File: path, Field: "file type", Value: st.Mode().Type().String(), Want: "a regular file"}
	}
	if st.Size() == 0 {
		return nil, nil
	}
	if st.Size() != int64(int(st.Size())) {
		return nil, &FormatError{File: path, Field: "file length", Value: fmt.Sprint(st.Size()), Want: "a size this machine can map"}
	}
	m, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("safetensors: map %s: %w", path, err)
	}
	return m, nil
}

// openSharded follows the index of a sharded checkpoint. Tensors of a named
// shard that the index does not list are kept, as the reference loader does.
func openSharded(dir string) (*Checkpoint, error) {
	index := filepath.Join(dir, IndexFile)
	raw, err := os.ReadFile(index)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("safetensors: %s holds neither %s nor %s: %w", dir, SingleFile, IndexFile, err)
	}
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	var idx struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(raw, &idx); err != nil {
		return nil, &FormatError{File: index, Field: "content", Value: "invalid JSON (" + err.Error() + ")", Want: `an object with a "weight_map"`}
	}
	if len(idx.WeightMap) == 0 {
		return nil, &FormatError{File: index, Field: "weight_map", Value: "missing or empty", Want: "tensor names and their files"}
	}
	names := slices.Sorted(maps.Keys(idx.WeightMap))
	shards := map[string]bool{}
	for _, name := range names {
		file := idx.WeightMap[name]
		if file == "" || file != filepath.Base(file) || !filepath.IsLocal(file) {
			return nil, &FormatError{File: index, Tensor: name, Field: "file", Value: fmt.Sprintf("%q", file), Want: "the name of a file in the same directory"}
		}
		shards[file] = true
	}
	c := &Checkpoint{tensors: map[string]*Tensor{}}
	for _, file := range slices.Sorted(maps.Keys(shards)) {
		if err := c.add(filepath.Join(dir, file)); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	for _, name := range names {
		file := filepath.Join(dir, idx.WeightMap[name])
		if t, ok := c.tensors[name]; !ok || t.File != file {
			err := &FormatError{File: index, Tensor: name, Field: "file", Value: fmt.Sprintf("%q, which lacks the tensor", idx.WeightMap[name]), Want: "the shard that holds it"}
			return nil, errors.Join(err, c.Close())
		}
	}
	c.finish()
	return c, nil
}
