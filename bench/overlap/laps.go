package overlap

import "time"

// laps are the times of a forward pass.
type laps struct {
	began                time.Time
	called, ready, ended []time.Time // of attention, by layer
	finished             time.Time
}

func (k *laps) step() float64 { return k.finished.Sub(k.began).Seconds() }

func (k *laps) stall() float64 {
	var d time.Duration
	for l := range k.called {
		d += k.ready[l].Sub(k.called[l])
	}
	return d.Seconds()
}

// times fills in what each layer computed for.
func (k *laps) times(p *pass) {
	p.embed = k.called[0].Sub(k.began).Seconds()
	for l := range k.called {
		next := k.finished
		if l+1 < len(k.called) {
			next = k.called[l+1]
		}
		p.attention = append(p.attention, k.ended[l].Sub(k.ready[l]).Seconds())
		p.ffn = append(p.ffn, next.Sub(k.ended[l]).Seconds())
	}
}
