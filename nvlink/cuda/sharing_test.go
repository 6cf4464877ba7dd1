//go:build cuda && cgo

package cuda

import (
	"strings"
	"testing"
)

// TestSharingIsTried: where the driver promises descriptors and makes none, memory
// is shared by IPC, and that is said once; where descriptors were asked for, it is
// an error.
func TestSharingIsTried(t *testing.T) {
	needFake(t)
	for _, call := range []string{"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemExportToShareableHandle"} {
		t.Run(call, func(t *testing.T) {
			t.Setenv("KVLEND_FAKE_FAIL", call+":1:801")
			var told notices
			f := newTestFabric(t, Config{Notice: told.add})
			for _, name := range []string{"a", "b"} {
				a := mustArena(t, f, name, "gpu0", 1<<12)
				if a.Kind() != IPC {
					t.Errorf("arena %s is %s, want %s", name, a.Kind(), IPC)
				}
				if _, file, err := a.Export(); err != nil || file != nil {
					t.Errorf("export: file %v, error %v", file, err)
				}
			}
			if len(told.said) != 1 || !strings.Contains(told.said[0], call) {
				t.Errorf("notices: %q", told.said)
			}
			t.Setenv("KVLEND_FAKE_FAIL", call+":1:801")
			must := newTestFabric(t, Config{Memory: VMM})
			a, err := must.NewArena("c", "gpu0", 1<<12)
			if err == nil { // export is not part of it
				_, _, err = a.Export()
				if e := a.Close(); e != nil {
					t.Error(e)
				}
			}
			if err == nil || !strings.Contains(err.Error(), call) {
				t.Errorf("error %v, want that of %s", err, call)
			}
		})
	}
}
