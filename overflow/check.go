package overflow

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlend/kvlend/overflow/device"
	"github.com/kvlend/kvlend/overflow/store"
)

// SumOf gives the checksums of the layer blocks in a store of that UUID
// (master.StoredSum).
type SumOf func(uuid [16]byte) func(e *store.Entry, layer int, data []byte) uint64

// Checked is what Check found on a device.
type Checked struct {
	Device device.Info
	// Found is what is on it. The rest is valid if it is a store of the right
	// shape (store.Ours).
	Found    store.Found
	Detail   string
	Store    store.Info
	Recovery store.Recovery
	Report   store.Report
}

// OK reports that nothing is wrong. What a crash leaves is not wrong: torn
// records are found out and dropped.
func (c *Checked) OK() bool {
	return c.Found == store.Ours && len(c.Report.Problems) == 0 && len(c.Report.Bad) == 0
}

// Check verifies the store on a device that nobody serves from: its log and,
// deep, all data against its checksums. It writes nothing. A store of other data is
// checked all the same, and Found says what it is. The error says that
// it could not be checked: device.ErrInUse while a system runs.
func Check(ctx context.Context, o Options, d DeviceOptions, deep bool, sum SumOf) (c *Checked, err error) {
	if d.Path == MemoryPath {
		return nil, fmt.Errorf("device %s: %w", d.Name, ErrMemory)
	}
	e, err := device.NewEngine(o.Engine)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	raw, err := openToRead(ctx, e, d)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, raw.Close()) }()
	in, err := store.Inspect(ctx, raw)
	if err != nil {
		return nil, err
	}
	c = &Checked{Device: raw.Info(), Found: in.Found, Detail: in.Detail, Store: in.Info}
	if in.Found != store.Ours {
		return c, nil
	}
	so := o.Store
	identity := so.Identity
	so.Identity = nil
	so.FlushEntries, so.FlushEvery, so.OnFail = 0, 0, nil // nothing is written
	so.Sum = sum(in.Info.UUID)
	s, r, err := store.Open(ctx, raw, so)
	var refused *store.RefusedError
	if errors.As(err, &refused) {
		c.Found, c.Detail = refused.Found, refused.Detail
		return c, nil
	}
	if err != nil {
		return nil, err
	}
	c.Recovery = r
	if c.Report, err = s.Check(ctx, deep); err != nil {
		return nil, err
	}
	// What recovery found to be outdated it would now like to write down: the
	// device is open for reading only, and whoever writes to it next does it.
	_ = s.Close(ctx)
	if identity != nil {
		c.Detail = belongs(in.Info, identity, o.label(d))
	}
	if c.Detail != "" {
		c.Found = store.OtherIdentity
	}
	return c, nil
}

// label is what a store says of itself, for people: whose it is, and the device's name.
func (o *Options) label(d DeviceOptions) string {
	label := d.Name
	if o.Model != "" {
		label = o.Model + "/" + d.Name
	}
	return label[:min(len(label), store.MaxLabel)]
}

// belongs says whose a store is if not this identity's; empty: it is.
func belongs(in store.Info, identity []byte, label string) string {
	want := store.Digest(identity)
	if in.Identity == want {
		return ""
	}
	return fmt.Sprintf("it was formatted for %q with identity %x; %q has identity %x (weights, kv_dtype and block_tokens)",
		in.Label, in.Identity[:6], label, want[:6])
}
