// Package supervisor owns a system's memory and processes: it creates every
// arena and unit table, starts the gateway and one process per model, hands
// them what they may map, starts them again when they die, makes sure that one
// that was fenced is gone, and ends them all when it ends.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/kvlend/kvlend/coordinator/wire"
	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/internal/audit"
	"github.com/kvlend/kvlend/internal/control"
	"github.com/kvlend/kvlend/internal/fabrics"
	"github.com/kvlend/kvlend/nvlink/shm"
	"github.com/kvlend/kvlend/planner"
)

// stopGrace is how long processes may take to end in good order.
const stopGrace = 5 * time.Second

// A process that dies is started again after a pause that doubles while it
// keeps dying and starts over when it has lived for a while.
const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = 5 * time.Second
	healthy    = 30 * time.Second
)

// GatewayName is the gateway's name among processes.
const GatewayName = "gateway"

// Options of a supervisor.
type Options struct {
	System *planner.System
	RunDir string // absolute, from RunDir
	// Command makes the command line of a process that is to be started, of
	// which Name and Role are known and, if it is a gateway that is started
	// again, the address that it must listen on;
	// nil: nothing is started, processes join on their own.
	Command func(Process) *exec.Cmd
	// Fabric makes the arenas; the caller closes it after Stop.
	Fabric fabrics.Fabric
	// Audit gets the starts and ends of processes; nil: nobody does.
	Audit *audit.Log
	Log   hclog.Logger
}

// Process is one process of the system.
type Process struct {
	Name    string // of the model, or GatewayName
	Role    string
	PID     int
	Ready   bool
	Listen  string // the gateway's address
	Kernels string
	// Restarts counts how often it was started again.
	Restarts int
}

// Supervisor runs a system. Start makes one; Stop must be called.
type Supervisor struct {
	opt    Options
	config []byte // YAML, resolved
	dir    *runDir
	arenas map[string]*fabrics.Owned
	tables map[string]*shm.Region
	// readOnly are descriptors of the tables for those who may only look.
	readOnly map[string]*os.File
	spawner  *spawner
	cancel   context.CancelFunc
	serving  chan error // control server's end

	mu       sync.Mutex
	procs    map[string]*proc // by name
	last     map[string]int   // the process that ended last, by name
	stopping bool
	failed   chan error    // capacity 1; the first reason to stop
	changed  chan struct{} // closed and replaced at every change of procs
}

type proc struct {
	Process
	cmd     *exec.Cmd     // nil: it was started by somebody else
	pidfd   int           // without cmd
	peer    *control.Peer // nil before it joined
	exited  chan struct{}
	started time.Time
	backoff time.Duration // before the next start
	served  bool          // it, or a process before it, has been ready
}

// Start creates the memory, opens the control socket and starts the processes.
func Start(ctx context.Context, opt Options) (*Supervisor, error) {
	config, err := opt.System.Config.Marshal()
	if err != nil {
		return nil, err
	}
	dir, err := holdRunDir(opt.RunDir)
	if err != nil {
		return nil, err
	}
	s := &Supervisor{
		opt: opt, dir: dir, config: config,
		arenas: map[string]*fabrics.Owned{}, tables: map[string]*shm.Region{}, readOnly: map[string]*os.File{},
		spawner: newSpawner(), procs: map[string]*proc{}, last: map[string]int{},
		failed: make(chan error, 1), changed: make(chan struct{}), serving: make(chan error, 1),
	}
	if err := s.createMemory(); err != nil {
		s.releaseMemory()
		s.spawner.close()
		dir.release()
		return nil, err
	}
	// The socket is there before the first process looks for it.
	socket, err := control.Listen(ControlSocket(dir.path))
	if err != nil {
		s.releaseMemory()
		s.spawner.close()
		dir.release()
		return nil, err
	}
	cctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel = cancel
	go func() {
		err := control.Serve(cctx, socket, (*handler)(s))
		if err != nil {
			s.fail(err) // nobody can join any more
		}
		s.serving <- err
	}()
	if err := s.startAll(); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

func (s *Supervisor) createMemory() error {
	if err := s.checkMemory(); err != nil {
		return err
	}
	for _, m := range s.opt.System.Models {
		name := m.Config.Name
		a, err := s.opt.Fabric.Create(name, m.Config.Device, m.AllocBytes())
		if err != nil {
			return fmt.Errorf("arena of %s (%s): %w", name, m.Config.Arena, err)
		}
		s.arenas[name] = a
		if m.Units == 0 {
			continue
		}
		r, err := shm.CreateRegion("units-"+name, elastic.UnitTableBytes(m.Units))
		if err != nil {
			return fmt.Errorf("unit table of %s: %w", name, err)
		}
		s.tables[name] = r
		if s.readOnly[name], err = r.ReadOnlyFile(); err != nil {
			return fmt.Errorf("unit table of %s: %w", name, err)
		}
		if _, err := elastic.FormatUnitTable(r.Bytes(), m.Unit, m.Arena, uint32(m.Index)); err != nil {
			return fmt.Errorf("unit table of %s: %w", name, err)
		}
	}
	return nil
}

func (s *Supervisor) releaseMemory() {
	for _, a := range s.arenas {
		a.Close()
	}
	for _, r := range s.tables {
		r.Close()
	}
	for _, f := range s.readOnly {
		f.Close()
	}
}

func (s *Supervisor) startAll() error {
	if s.opt.Command == nil {
		return nil
	}
	for _, m := range s.opt.System.Models {
		if err := s.startOne(m.Config.Role, m.Config.Name); err != nil {
			return err
		}
	}
	return s.startOne(GatewayName, GatewayName)
}

// startOne starts a process, in the place of one that ended if there was one.
func (s *Supervisor) startOne(role, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return nil
	}
	p := &proc{Process: Process{Name: name, Role: role}, exited: make(chan struct{}), started: time.Now()}
	if old := s.procs[name]; old != nil {
		p.Restarts, p.backoff, p.served, p.Listen = old.Restarts+1, old.backoff, old.served, old.Listen
	}
	p.cmd = s.opt.Command(p.Process)
	if err := s.spawner.start(p.cmd); err != nil {
		return fmt.Errorf("start of %s: %w", name, err)
	}
	p.PID = p.cmd.Process.Pid
	s.procs[name] = p
	s.audit(audit.KindStart, p, "")
	s.notify()
	go s.await(p)
	return nil
}

// await reaps a process and decides what its end means.
func (s *Supervisor) await(p *proc) {
	err := p.cmd.Wait()
	close(p.exited)
	if err == nil {
		err = errors.New("it ended without an error")
	}
	s.audit(audit.KindExit, p, err.Error())
	s.mu.Lock()
	p.Ready, p.peer = false, nil
	stopping, served := s.stopping, p.served
	if time.Since(p.started) > healthy {
		p.backoff = 0
	}
	p.backoff = min(max(2*p.backoff, minBackoff), maxBackoff)
	s.notify()
	s.mu.Unlock()
	if stopping {
		return
	}
	s.gone(p)
	if !served {
		s.fail(fmt.Errorf("%s (pid %d) ended: %w", p.title(), p.PID, err))
		return
	}
	s.opt.Log.Error("process ended, starting it again", "name", p.Name, "role", p.Role, "pid", p.PID,
		"reason", err, "restarts", p.Restarts, "pause", p.backoff)
	time.AfterFunc(p.backoff, func() {
		if err := s.startOne(p.Role, p.Name); err != nil {
			s.fail(err)
		}
	})
}

// audit records something about a process.
func (s *Supervisor) audit(kind string, p *proc, reason string) {
	s.opt.Audit.Record(audit.Record{Kind: kind, Peer: p.Name, PeerPID: p.PID, Reason: reason})
}

// gone tells everybody that a process has ended for certain.
func (s *Supervisor) gone(p *proc) {
	m := &wire.Gone{Model: p.Name, PID: p.PID}
	if p.Role == GatewayName {
		m.Model = ""
	}
	s.mu.Lock()
	s.last[p.Name] = p.PID
	peers := map[string]*control.Peer{}
	for name, other := range s.procs {
		if other.peer != nil {
			peers[name] = other.peer
		}
	}
	s.mu.Unlock()
	for name, peer := range peers {
		if err := peer.Send(m); err != nil {
			s.opt.Log.Warn("process cannot be told that another is gone", "name", name, "gone", p.Name, "reason", err)
		}
	}
}

func (s *Supervisor) fail(err error) {
	select {
	case s.failed <- err:
	default:
	}
}

// title is what a process is called in messages to people.
func (p *Process) title() string {
	if p.Role == GatewayName {
		return "the gateway"
	}
	return p.Role + " " + p.Name
}

// notify wakes those who wait for a change. mu is held.
func (s *Supervisor) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Processes lists the processes: models in the configuration's order, then the gateway.
func (s *Supervisor) Processes() []Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Process
	for _, name := range s.names() {
		if p := s.procs[name]; p != nil {
			out = append(out, p.Process)
		}
	}
	return out
}

func (s *Supervisor) names() []string {
	var names []string
	for _, m := range s.opt.System.Models {
		names = append(names, m.Config.Name)
	}
	return append(names, GatewayName)
}

// WaitReady returns when every process serves, or with the reason why that
// will not happen.
func (s *Supervisor) WaitReady(ctx context.Context) error {
	for {
		s.mu.Lock()
		all := true
		for _, name := range s.names() {
			p := s.procs[name]
			all = all && p != nil && p.Ready
		}
		changed := s.changed
		s.mu.Unlock()
		if all {
			return nil
		}
		select {
		case <-changed:
		case err := <-s.failed:
			s.fail(err) // keep it for Wait
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Wait returns nil when ctx ends, or the reason why the system cannot go on.
func (s *Supervisor) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-s.failed:
		return err
	}
}

// Stop ends every process (the gateway first, so that nobody is sent to a
// model that is gone), then frees the memory and the run directory.
func (s *Supervisor) Stop() {
	s.mu.Lock()
	s.stopping = true
	procs := make([]*proc, 0, len(s.procs))
	for _, name := range s.names() {
		if p := s.procs[name]; p != nil {
			procs = append(procs, p)
		}
	}
	s.mu.Unlock()
	var gateway, models []*proc
	for _, p := range procs {
		if p.Role == GatewayName {
			gateway = append(gateway, p)
		} else {
			models = append(models, p)
		}
	}
	s.endAll(gateway)
	s.endAll(models)
	s.cancel()
	<-s.serving
	s.spawner.close()
	s.releaseMemory()
	s.dir.release()
}

// ask asks a process to stop. One that joined on its own has no cmd: it sees
// the control socket close.
func (p *proc) ask() {
	if p.cmd != nil {
		p.cmd.Process.Signal(syscall.SIGTERM)
	}
}

// endAll asks processes to stop and gives them stopGrace together.
func (s *Supervisor) endAll(procs []*proc) {
	ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	for _, p := range procs {
		p.ask()
	}
	for _, p := range procs {
		s.end(ctx, p)
	}
}

// end waits for a process to stop, and kills it when ctx ends.
func (s *Supervisor) end(ctx context.Context, p *proc) {
	if p.cmd == nil {
		return
	}
	select {
	case <-p.exited:
		return
	case <-ctx.Done():
	}
	select {
	case <-p.exited: // just in time
	default:
		s.opt.Log.Warn("process did not stop in time, killing it", "name", p.Name, "pid", p.PID)
		p.cmd.Process.Kill()
		<-p.exited
	}
}
