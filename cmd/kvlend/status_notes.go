package main

import (
	"fmt"
	"strings"

	"github.com/kvlend/kvlend/api"
)

// notes lists what an operator should look at; nothing when all is well.
func notes(st *api.AdminStatus) string {
	var out []string
	for _, m := range st.Models {
		s := m.Status
		if s == nil {
			continue
		}
		add := func(format string, args ...any) {
			out = append(out, "  "+m.Name+": "+fmt.Sprintf(format, args...))
		}
		if s.Draining {
			add("is drained: it takes no requests (kvlend drain %s --undo)", m.Name)
		}
		if s.Restarts > 0 {
			add("its process was started again %d times", s.Restarts)
		}
		for _, d := range s.Degraded {
			add("%s", plain(d))
		}
	}
	if len(out) == 0 {
		return ""
	}
	return "\nattention:\n" + strings.Join(out, "\n") + "\n"
}
