package topology

// Via is what a copy between two GPUs crosses.
type Via string

// The ways from one GPU to another, best first.
const (
	ViaNVLink   Via = "nvlink"   // links from one to the other
	ViaNVSwitch Via = "nvswitch" // links of both to switches
	ViaPCIe     Via = "pcie"     // peer to peer over PCIe
	ViaHost     Via = "host"     // staged in the host's memory: no peer access
)

// Pair is the way from one GPU to another.
type Pair struct {
	From int `json:"from"` // index of a GPU
	To   int `json:"to"`   // index of another
	Via  Via `json:"via"`
	// Links are the active NVLinks that the way can use.
	Links int `json:"links,omitempty"`
	// BytesPerSec is nominal and in this direction; 0: not known.
	BytesPerSec float64 `json:"bytes_per_sec,omitempty"`
	P2P         P2P     `json:"p2p"`
	// Path is where their ways to the host meet, as `nvidia-smi topo -m`
	// abbreviates it: PIX, PXB, PHB, NODE or SYS.
	Path string `json:"path,omitempty"`
}

// P2PYes is the status of what works. Others say why it does not; none means
// that the driver does not say.
const P2PYes = "yes"

// P2P is what the driver allows from one GPU to another.
type P2P struct {
	Read    string `json:"read,omitempty"`
	Write   string `json:"write,omitempty"`
	NVLink  string `json:"nvlink,omitempty"`
	Atomics string `json:"atomics,omitempty"`
}

// Refused says why one GPU cannot access the other's memory; empty: it can, as
// far as is known.
func (p P2P) Refused() string {
	for _, s := range []string{p.Read, p.Write} {
		if s != "" && s != P2PYes {
			return s
		}
	}
	return ""
}

// Prober says what the driver allows between two GPUs, by index, and where
// their ways to the host meet.
type Prober func(from, to int) (p P2P, path string)

// Connect works out the pairs of the GPUs that answer. It takes nominal rates:
// the sum of the active links between the two, the smaller sum where a switch
// is between them, or the slower of their slots.
func Connect(gpus []GPU, probe Prober) []Pair {
	var pairs []Pair
	isGPU := make(map[string]bool, len(gpus))
	for _, g := range gpus {
		isGPU[g.PCI] = true
	}
	for i := range gpus {
		for j := range gpus {
			if i == j || gpus[i].Fault != "" || gpus[j].Fault != "" {
				continue
			}
			pairs = append(pairs, connect(&gpus[i], &gpus[j], isGPU, probe))
		}
	}
	return pairs
}

func connect(a, b *GPU, isGPU map[string]bool, probe Prober) Pair {
	p := Pair{From: a.Index, To: b.Index, Via: ViaPCIe}
	p.P2P, p.Path = probe(a.Index, b.Index)
	p.BytesPerSec = slower(a.PCIe.BytesPerSec(), b.PCIe.BytesPerSec())
	if p.P2P.Refused() != "" || a.MIG == On || b.MIG == On {
		// MIG cuts peer access off, whatever the links are.
		p.Via = ViaHost
		return p
	}
	if n, rate := a.linksTo(b.PCI); n > 0 {
		p.Via, p.Links, p.BytesPerSec = ViaNVLink, n, rate
		return p
	}
	if n, rate := switched(a, b, isGPU); n > 0 && a.joined() && b.joined() {
		p.Via, p.Links, p.BytesPerSec = ViaNVSwitch, n, rate
	}
	return p
}

// switched sums the links of two GPUs that meet in switches. Old drivers do not
// say that a far end is a switch, only its address, which is no GPU's: then it
// counts where both have links to it.
func switched(a, b *GPU, isGPU map[string]bool) (n int, rate float64) {
	hubs := map[string]bool{PeerSwitch: true}
	for _, l := range a.NVLinks {
		hubs[l.Peer] = hubs[l.Peer] || pciRE.MatchString(l.Peer) && !isGPU[l.Peer]
	}
	for hub, forwards := range hubs {
		na, ra := a.linksTo(hub)
		nb, rb := b.linksTo(hub)
		if forwards && na > 0 && nb > 0 {
			n += min(na, nb)
			rate += slower(ra, rb)
		}
	}
	return n, rate
}

// joined reports that switches forward what the GPU sends. GPUs before Hopper
// do not say.
func (g *GPU) joined() bool { return g.Fabric == FabricNone || g.Fabric == FabricCompleted }

// linksTo sums the active links to a far end.
func (g *GPU) linksTo(peer string) (n int, rate float64) {
	for _, l := range g.NVLinks {
		if l.Active && peer != "" && l.Peer == peer {
			n++
			rate += l.BytesPerSec
		}
	}
	return n, rate
}

// slower is the smaller of two rates that are known, 0 if one is not.
func slower(a, b float64) float64 { return min(a, b) }

// Links are the nominal links between devices that stand for GPUs: gpus gives
// the index of each device's GPU. Where two devices are one GPU, a copy reads
// and writes its memory, so that it has half of that bandwidth. Pairs of whose
// bandwidth nothing is known have no link.
func (inv *Inventory) Links(devices []string, gpus map[string]int) []Link {
	var out []Link
	for _, from := range devices {
		for _, to := range devices {
			a, okA := gpus[from]
			b, okB := gpus[to]
			if from == to || !okA || !okB {
				continue
			}
			l := Link{From: from, To: to, Source: FromNVML}
			if a == b {
				if g := inv.GPU(a); g != nil {
					l.BytesPerSec = g.MemoryBandwidth / 2
				}
			} else if p, ok := inv.Pair(a, b); ok {
				l.BytesPerSec = p.BytesPerSec
			}
			if l.BytesPerSec > 0 {
				out = append(out, l)
			}
		}
	}
	return out
}
