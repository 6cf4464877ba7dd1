package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvlend/kvlend/coordinator/wire"
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
