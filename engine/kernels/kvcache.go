package kernels

import (
	"encoding/binary"
	"fmt"
	"math"
)

// A layer block is [KVHeads] of all K tiles and then all V tiles of its
// tokens. A tile holds 16 tokens, is contiguous, and is arranged so that a
// product has tokens (K) or dimensions (V) in its lanes:
//
//	K  BF16 [D/2][16 tokens][2]   F32 [D][16 tokens]
//	V  BF16 [D/64][8][64 dims][2] F32 [D/64][16][64 dims]
//
// where V's BF16 pairs are two consecutive tokens of one dimension, and the
// last chunk of dimensions is narrower when 64 does not divide D.

// chunkDims is the number of dimensions in one chunk of a V tile.
const chunkDims = 64

// Validate reports which field is out of range.
func (l KVLayout) Validate() error {
	switch {
	case l.BlockTokens < tileTokens || l.BlockTokens%tileTokens != 0 || l.BlockTokens > 1<<20:
		return fmt.Errorf("kernels: KVLayout.BlockTokens is %d, want a multiple of %d up to 2^20", l.BlockTokens, tileTokens)
	case l.KVHeads < 1 || l.KVHeads > 1<<16:
		return fmt.Errorf("kernels: KVLayout.KVHeads is %d, want 1 to 65536", l.KVHeads)
	case l.HeadDim < 16 || l.HeadDim%16 != 0 || l.HeadDim > 1<<12:
		return fmt.Errorf("kernels: KVLayout.HeadDim is %d, want a multiple of 16 up to 4096", l.HeadDim)
	case l.DType != BF16 && l.DType != F32:
		return fmt.Errorf("kernels: KVLayout.DType is %v, want BF16 or F32", l.DType)
	}
	return nil
}

// LayerBlockBytes is M_block, the bytes of one layer block:
// 2 * BlockTokens * KVHeads * HeadDim * element size.
func (l KVLayout) LayerBlockBytes() int64 {
	return 2 * int64(l.KVHeads) * l.halfBytes()
}

// halfBytes is K or V of one head in a block.
func (l KVLayout) halfBytes() int64 {
	return int64(l.BlockTokens) * int64(l.HeadDim) * int64(l.DType.Size())
}

func (l KVLayout) tileBytes() int64 {
	return tileTokens * int64(l.HeadDim) * int64(l.DType.Size())
}

// keyTile is the byte offset of the K tile with token slot of one head; the V
// tile lies halfBytes further.
func (l KVLayout) keyTile(head, slot int) int64 {
	return int64(head)*2*l.halfBytes() + int64(slot/tileTokens)*l.tileBytes()
}

// valueOffset is the byte offset in a V tile of the first dimension of the
// chunk that starts at dimension c, for token t of the tile (BF16: of its pair).
func valueOffset(dt DType, d, c, t int) int {
	width := min(chunkDims, d-c)
	if dt == BF16 {
		return c*tileTokens*2 + t/2*width*4
	}
	return (c*tileTokens + t*width) * 4
}

// checkBlock says whether the layer block at off lies within mem.
func (l KVLayout) checkBlock(mem []byte, off int64) error {
	if n := l.LayerBlockBytes(); off < 0 || off > int64(len(mem))-n {
		return fmt.Errorf("kernels: layer block at byte %d, want 0 to %d (memory of %d bytes, blocks of %d)",
			off, int64(len(mem))-n, len(mem), n)
	}
	return nil
}

func (l KVLayout) checkSlot(mem []byte, off int64, slot int, k, v []float32) error {
	if err := l.Validate(); err != nil {
		return err
	}
	if slot < 0 || slot >= l.BlockTokens {
		return fmt.Errorf("kernels: slot %d, want 0 to %d", slot, l.BlockTokens-1)
	}
	if n := l.KVHeads * l.HeadDim; len(k) != n || len(v) != n {
		return fmt.Errorf("kernels: k and v have %d and %d elements, want %d", len(k), len(v), n)
	}
	return l.checkBlock(mem, off)
}

// WriteKV stores k and v, each KVHeads*HeadDim elements, of one token in slot
// of the layer block at mem[off]. BF16 rounds to nearest even. Concurrent
// calls for different slots are safe.
func WriteKV(mem []byte, l KVLayout, off int64, slot int, k, v []float32) error {
	if err := l.checkSlot(mem, off, slot, k, v); err != nil {
		return err
	}
	l.write(ref{}, mem[off:], slot, k, v)
	return nil
}

// write stores one token, or two consecutive ones of which the first is even,
// in a layer block: as many as k and v hold.
func (l KVLayout) write(o ops, block []byte, slot int, k, v []float32) {
	n, d := l.KVHeads*l.HeadDim, l.HeadDim
	t := slot % tileTokens
	for h := range l.KVHeads {
		at := l.keyTile(h, slot)
		kt := block[at:][:l.tileBytes()]
		vt := block[at+l.halfBytes():][:l.tileBytes()]
		for i := 0; i < len(k); i += n {
			kr := k[i+h*d:][:d]
			if l.DType == BF16 {
				o.storeKey(kt, t+i/n, kr)
			} else {
				writeF32(kt, vt, t+i/n, kr, v[i+h*d:][:d])
			}
		}
		switch {
		case l.DType != BF16:
		case len(k) > n:
			o.storeValuePair(vt, t, v[h*d:][:d], v[n+h*d:][:d])
		default:
			writeValue(vt, t, v[h*d:][:d])
		}
	}
}

// writeValue stores one token's values beside its neighbour's.
func writeValue(vt []byte, t int, v []float32) {
	d := len(v)
	for c := 0; c < d; c += chunkDims {
		row := vt[valueOffset(BF16, d, c, t)+t%2*2:]
		for i, f := range v[c:min(c+chunkDims, d)] {
			binary.LittleEndian.PutUint16(row[4*i:], bf16Round(f))
		}
	}
}

func writeF32(kt, vt []byte, t int, k, v []float32) {
	d := len(k)
	for i, f := range k {
		binary.LittleEndian.PutUint32(kt[(i*tileTokens+t)*4:], math.Float32bits(f))
	}
	for c := 0; c < d; c += chunkDims {
		row := vt[valueOffset(F32, d, c, t):]
		for i, f := range v[c:min(c+chunkDims, d)] {
			binary.LittleEndian.PutUint32(row[4*i:], math.Float32bits(f))
		}
	}
}

// ReadKV is the inverse of WriteKV: it widens what a slot holds into k and v.
func ReadKV(mem []byte, l KVLayout, off int64, slot int, k, v []float32) error {
	if err := l.checkSlot(mem, off, slot, k, v); err != nil {
		return err
	}
	d, t := l.HeadDim, slot%tileTokens
	load := func(b []byte) float32 {
		if l.DType == BF16 {
			return bf16Value(binary.LittleEndian.Uint16(b))
		}
		return math.Float32frombits(binary.LittleEndian.Uint32(b))
	}
	for h := range l.KVHeads {
		kt := mem[off+l.keyTile(h, slot):]
		vt := kt[l.halfBytes():]
		for i := range d {
			ko := (i*tileTokens + t) * 4
			vo := valueOffset(l.DType, d, i/chunkDims*chunkDims, t) + i%chunkDims*4
			if l.DType == BF16 {
				ko = (i/2*tileTokens+t)*4 + i%2*2
				vo += t % 2 * 2
			}
			k[h*d+i], v[h*d+i] = load(kt[ko:]), load(vt[vo:])
		}
	}
	return nil
}
