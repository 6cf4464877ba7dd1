package fabrics

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/shm"
	"github.com/kvlend/kvlend/nvlink/topology"
)

// host stands for devices in memory of the host.
type host struct{ *shm.Fabric }

// openSHM opens the fabric in memory of the host; a paced one crosses the
// configured links.
func openSHM(o Options) (Fabric, error) {
	c := o.Config
	out := shm.Config{Budgets: o.Budgets} // as fast as the machine copies
	if c.Fabric.Pace {
		var devices []string
		for _, d := range c.Devices {
			devices = append(devices, d.Name)
		}
		var links []topology.Link
		for _, l := range c.Links {
			one := topology.Link{From: l.From, To: l.To, BytesPerSec: float64(l.Bandwidth), Latency: time.Duration(l.Latency)}
			links = append(links, one)
			if !l.OneWay {
				one.From, one.To = l.To, l.From
				links = append(links, one)
			}
		}
		var err error
		if out.Topology, err = topology.New(devices, links); err != nil {
			return nil, fmt.Errorf("links: %w", err)
		}
		out.Pace = true
	}
	f, err := shm.New(out)
	if err != nil {
		return nil, err
	}
	return host{f}, nil
}

func (host) Create(name, device string, size int64) (*Owned, error) {
	a, err := shm.Create(name, device, size)
	if err != nil {
		return nil, err
	}
	return &Owned{Arena: a, File: a.File()}, nil
}

func (host) Open(handle string, fd int, name, device string, size int64) (nvlink.Arena, error) {
	if handle != "" {
		return nil, errors.Join(fmt.Errorf("arena %q: its handle %.40q is of another fabric", name, handle), closeFD(fd))
	}
	a, err := shm.Open(fd, name, device, size)
	if err != nil {
		return nil, errors.Join(err, closeFD(fd))
	}
	return a, nil
}

func (host) Host(name, device string, size int64) (nvlink.Arena, error) {
	if device == "" {
		device = hostDevice
	}
	return shm.Create(name, device, size)
}

// Detours is empty: all memory is the host's.
func (host) Detours(string, []string) []string { return nil }

// hostDevice is the host where nothing in the configuration stands for it.
const hostDevice = "host"

func closeFD(fd int) error {
	if fd < 0 {
		return nil
	}
	return unix.Close(fd)
}
