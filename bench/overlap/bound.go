package overlap

// pass is what the analytic bound knows of one forward pass: what each layer
// computed for, and what its loads take on an idle link. All in seconds.
type pass struct {
	buffers int
	lead    float64 // the loads begin so long before the step
	embed   float64 // from the step's start to the first layer
	// attention lasts from KV at hand until its end, ffn from there to the
	// next layer.
	attention, ffn []float64
	// streamed and promoted are the loads of one layer; 0: there are none.
	streamed, promoted float64
}

// stalls is the least that each layer must wait for its KV: the schedule of
// package lsc on a link that never idles, played through. In the steady state
// it is what a look at the pipeline says: with one buffer a streamed load
// hides behind the FFN alone, max(0, load - ffn); with two behind the whole
// layer before, max(0, load - attention - ffn). Promoted loads hide behind
// everything that came before.
func (p *pass) stalls() []float64 {
	n := len(p.attention)
	out := make([]float64, 0, n)
	done := make([]float64, 0, n) // ends of attention
	var loaded [2][]float64       // ends of streamed and of promoted loads
	each := [2]float64{p.streamed, p.promoted}
	at := p.lead + p.embed // when the next layer is called
	link := 0.0            // when the link is free
	for {
		for l := len(done); l < n && p.have(loaded, l); l++ {
			ready := at
			for k := range loaded {
				if each[k] > 0 {
					ready = max(ready, loaded[k][l])
				}
			}
			out = append(out, ready-at)
			done = append(done, ready+p.attention[l])
			at = done[l] + p.ffn[l]
		}
		s, w := len(loaded[0]), len(loaded[1])
		free := 0.0 // when attention has left the slots of the next streamed load
		known := p.streamed > 0 && s < n && (s < p.buffers || s-p.buffers < len(done))
		if known && s >= p.buffers {
			free = done[s-p.buffers]
		}
		more := p.promoted > 0 && w < n
		switch {
		case known && (!more || s <= w && free <= link):
			link = max(link, free) + p.streamed
			loaded[0] = append(loaded[0], link)
		case more:
			link += p.promoted
			loaded[1] = append(loaded[1], link)
		default:
			return out
		}
	}
}

// have reports whether the loads of layer l are planned.
func (p *pass) have(loaded [2][]float64, l int) bool {
	return (p.streamed == 0 || l < len(loaded[0])) && (p.promoted == 0 || l < len(loaded[1]))
}

func sum(list []float64) float64 {
	total := 0.0
	for _, v := range list {
		total += v
	}
	return total
}
