package engine

import (
	"encoding/hex"
	"fmt"
	"io"
	"slices"

	"github.com/kvlend/kvlend/engine/safetensors"
	"github.com/x448/float16"
	"github.com/zeebo/blake3"
)

// tensorDigest is the hash of a tensor's name, dtype, shape and bytes.
func tensorDigest(t *safetensors.Tensor) [32]byte {
	h := blake3.New()
	// Writes to a hash do not fail.
	_, _ = fmt.Fprintf(h, "%q %s %v\n", t.Name, t.DType, t.Shape)
	_, _ = h.Write(t.Data)
	var sum [32]byte
	copy(sum[:], h.Sum(nil))
	return sum
}

// modelDigest combines what decides the KV of given tokens: the architecture
// and the tensors. Names, token ids and the length of the context do not.
// Tensors are hashed one by one first, so that cores can share the work.
func modelDigest(c *Config, tensors [][32]byte) string {
	h := blake3.New()
	writeArchitecture(h, c)
	for _, t := range tensors {
		_, _ = h.Write(t[:])
	}
	return hex.EncodeToString(h.Sum(nil)[:32])
}

func writeArchitecture(w io.Writer, c *Config) {
	r := c.Rope
	geometry := []int{c.Layers, c.Hidden, c.Heads, c.KVHeads, c.HeadDim, c.FFN, c.Vocab}
	_, _ = fmt.Fprintf(w, "kvlend 1 %s %v eps %x qknorm %t bias %t %t tied %t\n",
		c.Arch, geometry, c.NormEps, c.QKNorm, c.AttnBias, c.MLPBias, c.TiedEmbed)
	_, _ = fmt.Fprintf(w, "rope %q %d %t %x\n", r.Scaling, r.Original, r.NoTruncate, []float64{
		r.Theta, r.Factor, r.LowFreqFactor, r.HighFreqFactor, r.BetaFast, r.BetaSlow, r.AttentionFactor})
}

func halfValue(h uint16) float32 { return float16.Frombits(h).Float32() }

// clone returns a copy that shares nothing with c.
func (c *Config) clone() *Config {
	out := *c
	out.BOS, out.EOS = slices.Clone(c.BOS), slices.Clone(c.EOS)
	return &out
}
