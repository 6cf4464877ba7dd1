package wire

// The messages between the supervisor and the processes it started, over a
// Unix socket that also carries file descriptors.

// Join is a process's first message to the supervisor.
type Join struct {
	Model string `cbor:"1,keyasint"` // empty for the gateway
	Role  string `cbor:"2,keyasint"` // "gateway", "master", "worker", "local"
	PID   int    `cbor:"3,keyasint"`
}

// Welcome answers Join. The file descriptors of Files travel with it, in order,
// but for those that have none.
type Welcome struct {
	Config []byte       `cbor:"1,keyasint"` // the resolved configuration, YAML
	Files  []SharedFile `cbor:"2,keyasint"`
	// Error refuses the join; the other fields are empty then.
	Error string `cbor:"3,keyasint,omitempty"`
	// Restarts is how often the process was started again.
	Restarts int `cbor:"4,keyasint"`
}

// SharedFile names memory that the supervisor owns and hands down.
type SharedFile struct {
	Model string `cbor:"1,keyasint"`
	Kind  string `cbor:"2,keyasint"` // "arena" or "units"
	Size  int64  `cbor:"3,keyasint"`
	// Handle is what a fabric needs beside the descriptor, or instead of it.
	Handle string `cbor:"4,keyasint,omitempty"`
	NoFile bool   `cbor:"5,keyasint,omitempty"` // no descriptor travels for it
}

// Ready says that a process serves.
type Ready struct {
	Model   string `cbor:"1,keyasint"`
	Listen  string `cbor:"2,keyasint"` // the gateway's address
	Kernels string `cbor:"3,keyasint"` // instruction set of a model's kernels
}

// Gone tells every process that one of them has ended for certain: it can write
// to nobody's memory any more, and whoever waits for it waits in vain.
type Gone struct {
	Model string `cbor:"1,keyasint"` // empty for the gateway
	PID   int    `cbor:"2,keyasint"`
}

// FenceAsk asks the supervisor to end a process that keeps units beyond every
// deadline. The answer is Gone.
//
// With Successor, the pid of the model's present process, nobody is to be
// ended: units are with a process before that one, and the question is whether
// it has ended. The answer is its Gone, which the asker may have missed.
type FenceAsk struct {
	Model     string `cbor:"1,keyasint"`
	Reason    string `cbor:"2,keyasint"`
	Successor int    `cbor:"3,keyasint,omitempty"`
}

// Bounds of the control messages.
const (
	maxConfig = 64 << 10
	maxFiles  = 128
	maxText   = MaxText
)

// Type implements Message.
func (*Join) Type() Type { return TypeJoin }

// Type implements Message.
func (*Welcome) Type() Type { return TypeWelcome }

// Type implements Message.
func (*Ready) Type() Type { return TypeReady }

// Type implements Message.
func (*Gone) Type() Type { return TypeGone }

// Type implements Message.
func (*FenceAsk) Type() Type { return TypeFenceAsk }

// Validate implements Message.
func (m *Gone) Validate() error {
	var c check
	c.text("model", m.Model, MaxName)
	c.count("pid", int64(m.PID), 1, 1<<31-1)
	return c.err
}

// Validate implements Message.
func (m *FenceAsk) Validate() error {
	var c check
	c.name("model", m.Model)
	c.text("reason", m.Reason, maxText)
	c.count("successor", int64(m.Successor), 0, 1<<31-1)
	return c.err
}

// Validate implements Message.
func (m *Join) Validate() error {
	var c check
	c.text("model", m.Model, MaxName)
	c.text("role", m.Role, MaxName)
	c.count("pid", int64(m.PID), 1, 1<<31-1)
	return c.err
}

// Validate implements Message.
func (m *Welcome) Validate() error {
	var c check
	c.length("config", len(m.Config), maxConfig)
	c.length("files", len(m.Files), maxFiles)
	c.text("error", m.Error, maxText)
	c.count("restarts", int64(m.Restarts), 0, maxCount)
	for _, f := range m.Files {
		c.text("files.model", f.Model, MaxName)
		c.text("files.kind", f.Kind, MaxName)
		c.count("files.size", f.Size, 1, 1<<62)
		c.text("files.handle", f.Handle, maxText)
	}
	return c.err
}

// Validate implements Message.
func (m *Ready) Validate() error {
	var c check
	c.text("model", m.Model, MaxName)
	c.text("listen", m.Listen, maxText)
	c.text("kernels", m.Kernels, maxText)
	return c.err
}
