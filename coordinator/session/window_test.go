package session

import (
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"
)

func numbered(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// TestWindows drives an outbox and an inbox over a channel that loses, repeats
// and reorders, and requires every message once and in order.
func TestWindows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type frame struct {
			first uint64
			msgs  [][]byte
		}
		var out outbox
		var in inbox
		const window, maxBytes = 8, 40
		out.reset()
		in.reset(window, maxBytes)
		var pushed, taken, done uint64
		var air []frame
		var acks [][2]uint64
		var queue [][]byte
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				if len(out.msgs) == window {
					t.Skip("the window is full")
				}
				pushed++
				out.push(numbered(pushed))
			},
			"send": func(t *rapid.T) {
				first, msgs, _ := out.batch(nil, rapid.IntRange(1, 5).Draw(t, "msgs"), 24)
				air = append(air, frame{first, msgs})
			},
			"resend": func(t *rapid.T) {
				first, msgs := out.oldest(nil, rapid.IntRange(1, 5).Draw(t, "msgs"), 24)
				air = append(air, frame{first, msgs})
			},
			"reconnect": func(*rapid.T) { air, acks = nil, nil; out.rewind() },
			"arrive": func(t *rapid.T) {
				if len(air) == 0 {
					t.Skip("nothing is in the air")
				}
				f := air[rapid.IntRange(0, len(air)-1).Draw(t, "frame")]
				ready, _ := in.accept(f.first, f.msgs)
				queue = append(queue, ready...)
				for _, m := range ready {
					taken++
					if got := binary.BigEndian.Uint64(m); got != taken {
						t.Fatalf("message %d arrived as number %d", got, taken)
					}
				}
			},
			"deliver": func(t *rapid.T) {
				if len(queue) == 0 {
					t.Skip("nothing waits to be delivered")
				}
				in.delivered(len(queue[0]))
				queue = queue[1:]
				done++
			},
			"acknowledge": func(*rapid.T) { acks = append(acks, [2]uint64{in.next - 1, in.done}) },
			"acknowledged": func(t *rapid.T) {
				if len(acks) == 0 {
					t.Skip("nothing is acknowledged")
				}
				a := acks[rapid.IntRange(0, len(acks)-1).Draw(t, "ack")]
				out.ack(a[0], a[1])
			},
			"nonsense": func(*rapid.T) {
				if r, d := out.ack(out.top+3, out.top+2); r || d {
					t.Fatal("an acknowledgement of what was never sent counted")
				}
			},
			"": func(t *rapid.T) {
				size := 0
				for _, m := range out.msgs {
					size += len(m)
				}
				if size != out.bytes || out.got+1 < out.first || out.next <= out.got || out.next > out.last()+1 || out.top < out.next {
					t.Fatalf("outbox is inconsistent: %+v", out)
				}
				if in.bytes != 8*len(queue) || in.ahead != 8*len(in.early) || in.ahead > maxBytes || in.bytes > 2*maxBytes {
					t.Fatalf("inbox is inconsistent: %+v, %d queued", in, len(queue))
				}
				if taken > pushed || in.done != done || out.first > done+1 {
					t.Fatalf("pushed %d, taken %d, delivered %d, dropped %d", pushed, taken, done, out.first-1)
				}
			},
		})
		// Whatever happened, a quiet channel brings the rest.
		for rounds := 0; out.first <= pushed; rounds++ {
			if rounds > 2*window {
				t.Fatalf("stuck at %d of %d", out.first, pushed)
			}
			out.rewind()
			first, msgs, _ := out.batch(nil, 100, 1<<20)
			ready, _ := in.accept(first, msgs)
			for _, m := range append(queue, ready...) {
				in.delivered(len(m))
			}
			queue = nil
			out.ack(in.next-1, in.done)
		}
	})
}
