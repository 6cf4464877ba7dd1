package elastic

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// mapTwice maps one memfd twice, the second time read-only, as a worker and a
// master in two processes would.
func mapTwice(t *testing.T, size int) (writer, reader []byte) {
	t.Helper()
	fd, err := unix.MemfdCreate("unit-table", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		t.Fatal(err)
	}
	for i, prot := range []int{unix.PROT_READ | unix.PROT_WRITE, unix.PROT_READ} {
		mem, err := unix.Mmap(fd, 0, size, prot, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Munmap(mem); err != nil {
				t.Error(err)
			}
		})
		if i == 0 {
			writer = mem
		} else {
			reader = mem
		}
	}
	return writer, reader
}

// TestTableTwoMappings runs readers on one mapping beside the writer on the
// other. In every row that the writer leaves, owner and expiry follow from the
// epoch, so a torn row shows.
func TestTableTwoMappings(t *testing.T) {
	spec := mustSpec(t, PolicyLCM, birch, atlas)
	const units = 5
	wmem, rmem := mapTwice(t, int(UnitTableBytes(units)))
	table, err := FormatUnitTable(wmem, spec, units*spec.Bytes, self)
	if err != nil {
		t.Fatal(err)
	}
	u := mustUnits(t, table, spec, 0)
	checked(t, u.Check)
	reader, err := OpenUnitTable(rmem)
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			seen := make([]uint64, units)
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				i := n % units
				row := reader.Row(i)
				if row.Epoch < seen[i] {
					t.Errorf("unit %d went back from epoch %d to %d", i, seen[i], row.Epoch)
					return
				}
				seen[i] = row.Epoch
				if bad := tornRow(row); bad != "" {
					t.Errorf("unit %d: %+v: %s", i, row, bad)
					return
				}
			}
		})
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		// Whoever gets a unit at epoch e is owner e%2; its lease ends at e seconds.
		empty, ok := u.space.EmptyUnit()
		if !ok {
			t.Fatal("no unit is empty")
		}
		row, err := u.Unit(empty)
		expectErr(t, err, nil)
		next := row.Epoch + 1
		g, err := u.Grant(uint32(next%2), 1, 1, time.Duration(next)*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if rng.IntN(2) == 0 {
			expectErr(t, u.MarkReclaim(uint32(next%2), g[0]), nil)
		}
		expectErr(t, u.Return(uint32(next%2), g[0]), nil)
	}
	close(stop)
	wg.Wait()
}

func tornRow(row UnitRow) string {
	switch row.State {
	case Local:
		if row.Owner != self || row.Expiry != 0 {
			return "a LOCAL unit with another owner or a lease"
		}
	case Lent, Reclaiming:
		if uint64(row.Owner) != row.Epoch%2 {
			return "owner of another epoch"
		}
		if row.Expiry != 0 && row.Expiry != time.Duration(row.Epoch)*time.Second {
			return "expiry of another epoch"
		}
	default:
		return "a state that was never written"
	}
	return ""
}
