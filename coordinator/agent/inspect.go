package agent

import "github.com/kvlend/kvlend/coordinator"

// Inspect runs f on the machine while nobody else does, under the landlord's
// lock. f must only look.
func (l *Lender) Inspect(f func(*coordinator.Lender)) {
	l.cfg.Landlord.Locked(func() bool {
		f(l.machine)
		return false
	})
}

// Inspect runs f on the machine while nobody else does, and waits for it. It
// reports false, without having run f, when the agent is closed. The caller
// must not hold the tenant's lock. f must only look.
func (b *Borrower) Inspect(f func(*coordinator.Borrower)) bool {
	done := make(chan struct{})
	b.loop.post(func() {
		f(b.machine)
		close(done)
	})
	return b.loop.wait(done)
}
