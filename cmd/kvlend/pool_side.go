package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/overflow"
	"github.com/kvlend/kvlend/overflow/device"
)

// unload starts to empty a device, goes on with it, or undoes that.
func (s *overflowSide) unload(name string, undo bool) *wire.UnloadState {
	if err, out := s.pool.Out[name]; out {
		return &wire.UnloadState{Fenced: wire.Clip(err.Error(), wire.MaxText)}
	}
	var names []string
	cache := s.cache.Load()
	for i, d := range s.pool.Devices {
		if d.Info().Name != name {
			names = append(names, d.Info().Name)
			continue
		}
		st := &wire.UnloadState{Blocks: cache.DrainStore(i, undo)}
		now := cache.Stores()[i]
		st.Draining, st.Fenced = now.Draining, wire.Clip(now.Fenced, wire.MaxText)
		return st
	}
	for out := range s.pool.Out {
		names = append(names, out)
	}
	slices.Sort(names)
	return &wire.UnloadState{Unknown: wire.Clip(fmt.Sprintf("there is no device %q in its overflow pool, there are: %s", name, strings.Join(names, ", ")), wire.MaxText)}
}

// lack says why contexts are shorter than configured at present, if they may be.
func (s *overflowSide) lack() string {
	var names []string
	for name := range s.pool.Out {
		names = append(names, name)
	}
	if c := s.cache.Load(); c != nil {
		for i, st := range c.Stores() {
			if st.Fenced != "" {
				names = append(names, s.pool.Devices[i].Info().Name)
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return fmt.Sprintf("out of use in the overflow pool: %s (kvlend pool status says why)", strings.Join(names, ", "))
}

// identify puts devices into the order of the configuration, and says of those that
// never opened what it says of them.
func (s *overflowSide) identify(disks []wire.DiskStatus) {
	at := map[string]int{}
	for i, d := range s.devices {
		at[d.Name] = i
	}
	slices.SortStableFunc(disks, func(a, b wire.DiskStatus) int { return cmp.Compare(at[a.Name], at[b.Name]) })
	for i := range disks {
		d := s.devices[at[disks[i].Name]]
		if disks[i].Path == "" {
			disks[i].Path = d.Path
		}
		if disks[i].Kind == "" && d.Path == overflow.MemoryPath {
			disks[i].Kind = string(device.DRAM)
		}
		if disks[i].Fenced != "" {
			disks[i].Free = 0 // nothing goes there
		}
		if disks[i].Budget == 0 {
			disks[i].Budget = d.Budget.PerDay
		}
	}
}

// plainFault is an error of a device that was not opened, without what is known.
func plainFault(err error) string {
	var opening *device.Error
	if errors.As(err, &opening) && opening.Op == "open" {
		return opening.Err.Error()
	}
	return err.Error()
}
