package supervisor

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/internal/audit"
	"github.com/kvlend/kvlend/internal/control"
	"github.com/kvlend/kvlend/planner"
)

// handler is the supervisor as the control socket sees it.
type handler Supervisor

// nameOf is a process's name among the supervisor's.
func nameOf(j *wire.Join) string {
	if j.Role == GatewayName {
		return GatewayName
	}
	return j.Model
}

// Joined hands a process its configuration and the memory that it may map: a
// model its own arena and unit table, a master also the arenas of its lenders
// and, read-only, their unit tables.
func (h *handler) Joined(j *wire.Join, peer *control.Peer) (*wire.Welcome, []*os.File, error) {
	s := (*Supervisor)(h)
	w := &wire.Welcome{Config: s.config}
	var files []*os.File
	if j.Role != GatewayName {
		m := s.opt.System.Model(j.Model)
		if m == nil || m.Config.Role != j.Role {
			return nil, nil, fmt.Errorf("no model %q with role %q in the configuration", j.Model, j.Role)
		}
		files = s.share(w, m)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.joining(j, peer)
	if err != nil {
		return nil, nil, err
	}
	p.peer = peer
	w.Restarts = p.Restarts
	s.notify()
	return w, files, nil
}

// joining finds the place of a process that joins. mu is held.
func (s *Supervisor) joining(j *wire.Join, peer *control.Peer) (*proc, error) {
	name := nameOf(j)
	switch p := s.procs[name]; {
	case p != nil && p.PID == peer.PID():
		return p, nil
	case p != nil:
		return nil, fmt.Errorf("%s is already served by pid %d", name, p.PID)
	case s.opt.Command != nil:
		return nil, fmt.Errorf("%s is started by this supervisor, not by others", name)
	}
	fd, err := unix.PidfdOpen(peer.PID(), 0)
	if err != nil {
		return nil, fmt.Errorf("pid %d: %w", peer.PID(), err)
	}
	p := &proc{Process: Process{Name: name, Role: j.Role, PID: peer.PID()}, pidfd: fd}
	s.procs[name] = p
	s.audit(audit.KindStart, p, "it joined on its own")
	return p, nil
}

func (s *Supervisor) share(w *wire.Welcome, m *planner.Model) []*os.File {
	var files []*os.File
	add := func(owner *planner.Model) {
		name := owner.Config.Name
		a := s.arenas[name]
		w.Files = append(w.Files, wire.SharedFile{Model: name, Kind: "arena", Size: owner.AllocBytes(), Handle: a.Handle, NoFile: a.File == nil})
		if a.File != nil {
			files = append(files, a.File)
		}
		if r := s.tables[name]; r != nil {
			table := r.File()
			if owner != m {
				table = s.readOnly[name]
			}
			w.Files = append(w.Files, wire.SharedFile{Model: name, Kind: "units", Size: r.Size()})
			files = append(files, table)
		}
	}
	add(m)
	for _, l := range m.Lenders {
		add(l.Worker)
	}
	return files
}

// Received implements control.Handler.
func (h *handler) Received(j *wire.Join, m wire.Message) {
	s := (*Supervisor)(h)
	switch m := m.(type) {
	case *wire.Ready:
		s.mu.Lock()
		if p := s.procs[nameOf(j)]; p != nil {
			p.Ready, p.served, p.Listen, p.Kernels = true, true, m.Listen, m.Kernels
			s.audit(audit.KindReady, p, "")
			s.notify()
		}
		s.mu.Unlock()
	case *wire.FenceAsk:
		s.fence(j, m)
	default:
		s.opt.Log.Warn("unexpected message", "from", nameOf(j), "type", m.Type())
	}
}

// fence ends a borrower that keeps units beyond every deadline. That it is
// gone is told to everybody when it has been reaped.
func (s *Supervisor) fence(j *wire.Join, m *wire.FenceAsk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.procs[m.Model]
	if m.Successor != 0 {
		s.confirmGone(j, m)
		return
	}
	if p == nil || p.Role == GatewayName {
		s.opt.Log.Warn("nobody to fence", "asked by", nameOf(j), "model", m.Model)
		return
	}
	s.opt.Log.Error("ending a process that keeps borrowed memory", "name", p.Name, "pid", p.PID,
		"asked by", nameOf(j), "reason", m.Reason)
	s.audit(audit.KindKill, p, wire.Clip("asked by "+nameOf(j)+": "+m.Reason, wire.MaxText))
	p.kill()
}

// confirmGone answers whether the processes before a model's present one have
// ended. They have: a process is started, or let join, only after the one before
// it was reaped. If the present one is another by now there is no answer; the
// asker hears of that one's end too. mu is held.
func (s *Supervisor) confirmGone(j *wire.Join, m *wire.FenceAsk) {
	p, asker := s.procs[m.Model], s.procs[nameOf(j)]
	last := s.last[m.Model]
	if p == nil || p.PID != m.Successor || last == 0 || asker == nil || asker.peer == nil {
		return
	}
	peer := asker.peer
	go func() {
		if err := peer.Send(&wire.Gone{Model: m.Model, PID: last}); err != nil {
			s.opt.Log.Warn("process cannot be told that another is gone", "name", nameOf(j), "gone", m.Model, "reason", err)
		}
	}()
}

// kill ends a process for good, through its pidfd.
func (p *proc) kill() {
	if p.cmd != nil {
		p.cmd.Process.Kill()
		return
	}
	unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0)
}

// Left implements control.Handler. The end of a process that the supervisor
// started is noticed by await. One that joined on its own is made to end: a
// process that nobody can talk to must not keep mapping memory.
func (h *handler) Left(j *wire.Join) {
	s := (*Supervisor)(h)
	name := nameOf(j)
	s.mu.Lock()
	p := s.procs[name]
	own := p != nil && p.cmd == nil
	stopping := s.stopping
	s.mu.Unlock()
	if !own {
		return
	}
	if !stopping {
		p.kill()
		waitPidfd(p.pidfd)
	}
	s.mu.Lock()
	delete(s.procs, name)
	s.notify()
	s.mu.Unlock()
	unix.Close(p.pidfd)
	s.audit(audit.KindExit, p, "it left")
	if !stopping {
		s.opt.Log.Warn("process has left", "name", name, "role", p.Role, "pid", p.PID)
		s.gone(p)
	}
}

// waitPidfd waits until the process behind a pidfd has ended.
func waitPidfd(fd int) {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(fds, -1); err != unix.EINTR {
			return
		}
	}
}
