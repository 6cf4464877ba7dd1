//go:build cuda && cgo

package cuda

import (
	"sync"

	"github.com/kvlend/kvlend/nvlink"
	"github.com/kvlend/kvlend/nvlink/inorder"
)

// event implements nvlink.Timed. The time between began and ended is the
// device's; both are late by what the host took to notice the end.
type event struct {
	inorder.Event
	m      *machine
	issued chan struct{} // closed when everything before it has been issued

	mu sync.Mutex
	// cu is the CUDA event while other streams may wait for it on their
	// devices: from issued to done.
	cu uint64
}

var _ nvlink.Timed = (*event)(nil)

// retire keeps devices from waiting for the CUDA event any more: it is reused.
func (e *event) retire() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cu = 0
}
