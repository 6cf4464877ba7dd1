package wire

// The message types. Numbers are never reused.
const (
	TypeHello       Type = 0x01
	TypeBye         Type = 0x02
	TypeFrame       Type = 0x03
	TypeBorrow      Type = 0x10
	TypeGrant       Type = 0x11
	TypeDeny        Type = 0x12
	TypeReturn      Type = 0x13
	TypeReclaim     Type = 0x14
	TypeReleased    Type = 0x15
	TypeRenew       Type = 0x16
	TypeRenewed     Type = 0x17
	TypeSync        Type = 0x18
	TypeSubmit      Type = 0x20
	TypeCancel      Type = 0x21
	TypeChunk       Type = 0x22
	TypeFinished    Type = 0x23
	TypeFailed      Type = 0x24
	TypeStatusAsk   Type = 0x25
	TypeStatus      Type = 0x26
	TypeCheckAsk    Type = 0x27
	TypeCheckReport Type = 0x28
	TypeDrainAsk    Type = 0x29
	TypeDrainState  Type = 0x2a
	TypeTraceAsk    Type = 0x2b
	TypeTrace       Type = 0x2c
	TypeUnloadAsk   Type = 0x2d
	TypeUnloadState Type = 0x2e
	TypeJoin        Type = 0x30
	TypeWelcome     Type = 0x31
	TypeReady       Type = 0x32
	TypeGone        Type = 0x33
	TypeFenceAsk    Type = 0x34
)

// String names a type for logs.
func (t Type) String() string {
	if int(t) < len(kinds) && kinds[t].name != "" {
		return kinds[t].name
	}
	return "unknown"
}

// kind is what Parse knows about a message type.
type kind struct {
	name string
	make func() Message
}

// kinds is indexed by type and never changes.
var kinds = [...]kind{
	TypeHello:       {"Hello", func() Message { return new(Hello) }},
	TypeBye:         {"Bye", func() Message { return new(Bye) }},
	TypeFrame:       {"Frame", func() Message { return new(Frame) }},
	TypeBorrow:      {"Borrow", func() Message { return new(Borrow) }},
	TypeGrant:       {"Grant", func() Message { return new(Grant) }},
	TypeDeny:        {"Deny", func() Message { return new(Deny) }},
	TypeReturn:      {"Return", func() Message { return new(Return) }},
	TypeReclaim:     {"Reclaim", func() Message { return new(Reclaim) }},
	TypeReleased:    {"Released", func() Message { return new(Released) }},
	TypeRenew:       {"Renew", func() Message { return new(Renew) }},
	TypeRenewed:     {"Renewed", func() Message { return new(Renewed) }},
	TypeSync:        {"Sync", func() Message { return new(Sync) }},
	TypeSubmit:      {"Submit", func() Message { return new(Submit) }},
	TypeCancel:      {"Cancel", func() Message { return new(Cancel) }},
	TypeChunk:       {"Chunk", func() Message { return new(Chunk) }},
	TypeFinished:    {"Finished", func() Message { return new(Finished) }},
	TypeFailed:      {"Failed", func() Message { return new(Failed) }},
	TypeStatusAsk:   {"StatusAsk", func() Message { return new(StatusAsk) }},
	TypeStatus:      {"Status", func() Message { return new(Status) }},
	TypeCheckAsk:    {"CheckAsk", func() Message { return new(CheckAsk) }},
	TypeCheckReport: {"CheckReport", func() Message { return new(CheckReport) }},
	TypeDrainAsk:    {"DrainAsk", func() Message { return new(DrainAsk) }},
	TypeDrainState:  {"DrainState", func() Message { return new(DrainState) }},
	TypeTraceAsk:    {"TraceAsk", func() Message { return new(TraceAsk) }},
	TypeTrace:       {"Trace", func() Message { return new(Trace) }},
	TypeUnloadAsk:   {"UnloadAsk", func() Message { return new(UnloadAsk) }},
	TypeUnloadState: {"UnloadState", func() Message { return new(UnloadState) }},
	TypeJoin:        {"Join", func() Message { return new(Join) }},
	TypeWelcome:     {"Welcome", func() Message { return new(Welcome) }},
	TypeReady:       {"Ready", func() Message { return new(Ready) }},
	TypeGone:        {"Gone", func() Message { return new(Gone) }},
	TypeFenceAsk:    {"FenceAsk", func() Message { return new(FenceAsk) }},
}

// Type implements Message.
func (*Hello) Type() Type { return TypeHello }

// Type implements Message.
func (*Bye) Type() Type { return TypeBye }

// Type implements Message.
func (*Frame) Type() Type { return TypeFrame }

// Type implements Message.
func (*Borrow) Type() Type { return TypeBorrow }

// Type implements Message.
func (*Grant) Type() Type { return TypeGrant }

// Type implements Message.
func (*Deny) Type() Type { return TypeDeny }

// Type implements Message.
func (*Return) Type() Type { return TypeReturn }

// Type implements Message.
func (*Reclaim) Type() Type { return TypeReclaim }

// Type implements Message.
func (*Released) Type() Type { return TypeReleased }

// Type implements Message.
func (*Renew) Type() Type { return TypeRenew }

// Type implements Message.
func (*Renewed) Type() Type { return TypeRenewed }

// Type implements Message.
func (*Sync) Type() Type { return TypeSync }

// Type implements Message.
func (*Submit) Type() Type { return TypeSubmit }

// Type implements Message.
func (*Cancel) Type() Type { return TypeCancel }

// Type implements Message.
func (*Chunk) Type() Type { return TypeChunk }

// Type implements Message.
func (*Finished) Type() Type { return TypeFinished }

// Type implements Message.
func (*Failed) Type() Type { return TypeFailed }

// Type implements Message.
func (*StatusAsk) Type() Type { return TypeStatusAsk }

// Type implements Message.
func (*Status) Type() Type { return TypeStatus }
