package configs

import (
	"strings"

	"github.com/kvlend/kvlend/elastic"
)

// The struct tags of the schema, beside yaml:
//
//	doc   one line for the JSON Schema
//	enum  accepted values, comma-separated
//	min   smallest accepted number (sizes and durations in their own form)
//	max   largest accepted number
//	mult  the number must be a multiple of this
//	req   "true": the key must be present
//	def   default of an element of a list (top-level sections take theirs
//	      from examples/default.yaml)

// Config is a whole configuration. Parse, Load and Default return it resolved:
// every default is filled in, every check has passed. Treat it as read-only;
// it may then be shared between goroutines.
type Config struct {
	Version int      `yaml:"version" req:"true" min:"1" max:"1" doc:"version of this schema"`
	RunDir  string   `yaml:"run_dir" doc:"directory of sockets and locks; empty: $XDG_RUNTIME_DIR/kvlend, or kvlend-UID in the temporary directory"`
	Audit   Audit    `yaml:"audit" doc:"the account of who held whose memory"`
	Log     Log      `yaml:"log" doc:"what is logged, and how"`
	Gateway Gateway  `yaml:"gateway" doc:"the HTTP gateway"`
	Fabric  Fabric   `yaml:"fabric" doc:"what moves bytes between arenas"`
	Devices []Device `yaml:"devices" doc:"the devices that hold arenas"`
	Links   []Link   `yaml:"links" doc:"bandwidth and latency between devices, where the fabric cannot measure them or is to emulate them"`
	Models  []Model  `yaml:"models" req:"true" doc:"the models; one process each. Their order is their index in the unit tables"`
	Lending Lending  `yaml:"lending" doc:"when and in which pieces memory changes hands"`

	source *source // where values came from, for messages; nil when not parsed
}

// Log says what is logged.
type Log struct {
	Level  string `yaml:"level" enum:"trace,debug,info,warn,error" doc:"least important level that is logged"`
	Format string `yaml:"format" enum:"text,json" doc:"form of a log line"`
}

// Audit is the append-only account of grants, returns, reclaims and fences.
type Audit struct {
	Dir     string `yaml:"dir" doc:"absolute path of a directory for the account, one file per process; empty: none is kept"`
	MaxFile Bytes  `yaml:"max_file" min:"4KiB" max:"16GiB" doc:"size at which a file is put aside and a new one begun"`
	Keep    int    `yaml:"keep" min:"1" max:"1000" doc:"files put aside that are kept per process"`
}

// Gateway is the HTTP server.
type Gateway struct {
	Listen         string   `yaml:"listen" doc:"host:port; port 0 picks a free one"`
	APIKeys        []APIKey `yaml:"api_keys" doc:"keys that clients may present; none: no key is needed"`
	Auto           bool     `yaml:"auto" doc:"offer the model auto, which sends each request to the model that its KV demand suits"`
	MaxBody        Bytes    `yaml:"max_body" min:"1KiB" max:"1GiB" doc:"largest request body"`
	MaxHeader      Bytes    `yaml:"max_header" min:"1KiB" max:"16MiB" doc:"largest request header"`
	ReadTimeout    Duration `yaml:"read_timeout" min:"1ms" doc:"time in which a request must have arrived"`
	RequestTimeout Duration `yaml:"request_timeout" min:"1ms" doc:"time after which a request is cancelled"`
	MaxConnections int      `yaml:"max_connections" min:"1" max:"1000000" doc:"connections served at once"`
}

// Fabric is what moves bytes between arenas.
type Fabric struct {
	Kind     string `yaml:"kind" enum:"shm,cuda" doc:"shm: memory of this host; cuda: device memory over NVLink"`
	Pace     bool   `yaml:"pace" doc:"shm only: slow copies down to the bandwidth of links (emulation)"`
	Topology string `yaml:"topology" enum:"auto,config,nvml" doc:"where the bandwidths of links come from: config: from links; nvml: from the GPUs' driver (cuda only); auto: with cuda from the driver for what links do not say, else from links"`
	Driver   string `yaml:"driver" doc:"cuda only: the library of the GPUs' driver, a path or a name for the loader; empty: libcuda.so.1"`
	Measured string `yaml:"measured" doc:"absolute path of a file of measured links, which count more than all others; empty: none"`
}

// Values of Fabric.Topology.
const (
	TopologyAuto   = "auto"
	TopologyConfig = "config"
	TopologyNVML   = "nvml"
)

// Device is one GPU, or a part of the host that plays one.
type Device struct {
	Name   string `yaml:"name" req:"true" doc:"name, unique among devices"`
	Kind   string `yaml:"kind" def:"cpu" doc:"free text such as H20, H100-SXM or cpu"`
	Memory Bytes  `yaml:"memory" doc:"memory of the device; 0: unknown, arenas are not checked against it"`
	GPU    string `yaml:"gpu,omitempty" doc:"cuda only: which GPU it is: a UUID or the beginning of one, a PCI address, or an index in the order of PCI addresses; empty: the number at the end of the name is the index"`
}

// Selector says which GPU the device is, as topology.Inventory.Find takes it;
// empty: nothing says so.
func (d Device) Selector() string {
	if d.GPU != "" {
		return d.GPU
	}
	return d.Name[len(strings.TrimRight(d.Name, "0123456789")):]
}

// Link is a connection between two devices. It holds in both directions unless
// OneWay is set.
type Link struct {
	From      string   `yaml:"from" req:"true" doc:"name of a device"`
	To        string   `yaml:"to" req:"true" doc:"name of another device"`
	Bandwidth Rate     `yaml:"bandwidth" req:"true" min:"1B/s" doc:"bandwidth in each direction"`
	Latency   Duration `yaml:"latency" doc:"time before the first byte arrives"`
	OneWay    bool     `yaml:"oneway,omitempty" doc:"the link leads only from 'from' to 'to'"`
	Origin    string   `yaml:"origin,omitempty" enum:"config,nvml,measured" doc:"where the bandwidth comes from; kvlend up says so to its processes"`
}

// AutoModel is the name by which clients leave the choice of the model to the
// gateway; no model can have it.
const AutoModel = "auto"

// The roles of a model.
const (
	RoleMaster = "master" // borrows
	RoleWorker = "worker" // lends
	RoleLocal  = "local"  // neither
)

// Model is one model and the process that serves it.
type Model struct {
	Name           string   `yaml:"name" req:"true" doc:"name in the API, unique among models"`
	Source         string   `yaml:"source" req:"true" doc:"builtin:NAME, catalog:NAME (geometry for planning, cannot be served), or a Hugging Face directory"`
	Role           string   `yaml:"role" req:"true" enum:"master,worker,local" doc:"master: borrows KV memory; worker: lends it; local: neither"`
	Device         string   `yaml:"device" req:"true" doc:"name of the device that holds the arena"`
	Arena          Bytes    `yaml:"arena" req:"true" min:"1B" doc:"memory for the KV cache"`
	BlockTokens    int      `yaml:"block_tokens" def:"16" min:"16" max:"1024" mult:"16" doc:"tokens in a block"`
	KVDtype        string   `yaml:"kv_dtype" def:"bf16" enum:"bf16,f32,f16" doc:"element type of the KV cache; f16 only with catalog models"`
	MaxRunning     int      `yaml:"max_running" def:"8" min:"1" max:"65536" doc:"sequences computed at once"`
	MaxBatchTokens int      `yaml:"max_batch_tokens" def:"256" min:"16" max:"1048576" doc:"token budget of one iteration, at least block_tokens"`
	MaxWaiting     int      `yaml:"max_waiting" def:"256" max:"1000000" doc:"requests that may queue; more are refused"`
	Threads        int      `yaml:"threads" max:"4096" doc:"CPU threads of the engine; 0: all cores"`
	LSC            LSC      `yaml:"lsc,omitempty" doc:"masters only: the layer stream cache"`
	Host           Host     `yaml:"host,omitempty" doc:"masters only: host memory for what fits on no device"`
	Overflow       Overflow `yaml:"overflow,omitempty" doc:"masters only: disks for what fits on no device; what is there outlives a restart"`
	Floor          Bytes    `yaml:"floor,omitempty" doc:"workers only: memory that is never lent"`
	ZeroOnReturn   bool     `yaml:"zero_on_return,omitempty" doc:"workers only: wipe each unit before it is lent and when it comes home, so that neither side can read what the other left in it"`
	Shares         []Share  `yaml:"shares,omitempty" doc:"workers only: how what it can lend is divided between masters that together want more; one that is not named has weight 1 and no quota"`
	BorrowFrom     []string `yaml:"borrow_from,omitempty" doc:"masters only: names of workers; none: all of them"`
}

// Host is memory of the host in which a master keeps prefixes that nobody uses
// and that fit neither into its arena nor into borrowed memory.
type Host struct {
	Bytes  Bytes  `yaml:"bytes" doc:"how much; 0: none"`
	Device string `yaml:"device,omitempty" doc:"name of the device that stands for the host, where its link is paced; none: copies are as fast as the machine"`
	Sync   bool   `yaml:"sync,omitempty" doc:"load a whole prefix before its request is computed, rather than layer by layer meanwhile; for comparisons"`
}

// Overflow is a master's part of the overflow pool: its disks.
type Overflow struct {
	Devices    []Disk   `yaml:"devices,omitempty" doc:"none: there is no pool"`
	Placement  string   `yaml:"placement" enum:"bandwidth,uniform,single" doc:"how blocks are divided among the devices: by measured bandwidth (the default), evenly, or all on the first with room"`
	AdmitAfter int      `yaml:"admit_after" min:"1" max:"16" doc:"at which use a block is worth a write (2)"`
	Buffers    Bytes    `yaml:"buffers" min:"4MiB" max:"64GiB" doc:"memory for I/O (32MiB)"`
	Timeout    Duration `yaml:"timeout" min:"1ms" max:"10m" doc:"how long a device may take for one operation (5s)"`
	Portable   bool     `yaml:"portable,omitempty" doc:"do without io_uring, for comparisons"`
}

// Disk is one device of the overflow pool.
type Disk struct {
	Name        string `yaml:"name" req:"true" doc:"unique in the model"`
	Path        string `yaml:"path" req:"true" doc:"a file, which is made if it is missing; a block device; an NVMe namespace for passthrough, such as /dev/ng0n1; or dram: memory, which is gone after a restart"`
	Size        Bytes  `yaml:"size,omitempty" doc:"how much of it is used; needed for a file, of other devices 0 means all"`
	Block       string `yaml:"block,omitempty" doc:"of an NVMe namespace: its block device, for when passthrough fails"`
	NUMANode    int    `yaml:"numa_node" def:"-1" min:"-1" max:"1023" doc:"of memory: where it lies; -1: anywhere"`
	WriteBudget Bytes  `yaml:"write_budget,omitempty" doc:"most bytes written in a day, for its endurance; 0: no limit"`
	RatedWrites Bytes  `yaml:"rated_writes,omitempty" doc:"what its maker guarantees (TBW), for the projected life; 0: not known"`
}

// Share is one master's part of what a worker can lend.
type Share struct {
	Master string  `yaml:"master" req:"true" doc:"name of a master that may borrow from the worker"`
	Weight int     `yaml:"weight" def:"1" min:"1" max:"1000" doc:"its part, in proportion to the weights of the others that want some"`
	Quota  Percent `yaml:"quota" def:"100%" doc:"the most that it may hold of what the worker can lend, more than 0%"`
}

// LSC is a master's layer stream cache.
type LSC struct {
	Buffers int `yaml:"buffers" min:"1" max:"2" doc:"1: transfers hide behind the FFN; 2: behind attention as well, with half the slots"`
}

// Lending is the policy of lending.
type Lending struct {
	Unit            Unit      `yaml:"unit" doc:"the piece of memory that changes hands"`
	ScaleUp         ScaleUp   `yaml:"scale_up" doc:"when a worker takes memory back"`
	ScaleDown       ScaleDown `yaml:"scale_down" doc:"when a worker offers memory"`
	Lease           Duration  `yaml:"lease" min:"1ms" doc:"time for which a grant holds unless it is renewed"`
	ReclaimDeadline Duration  `yaml:"reclaim_deadline" min:"1ms" doc:"time that a master has to give units back; less than lease"`
	IdleReturn      Duration  `yaml:"idle_return" doc:"time after which a master gives unused units back; 0: never"`
	KeepPrefix      Duration  `yaml:"keep_prefix" doc:"time for which a worker keeps blocks of ended requests from being lent, so that a conversation can go on with them; 0: they make way at once"`
	LinkBudget      Rate      `yaml:"link_budget" doc:"the most that a master reads from and writes to one worker's arena, both together, so that the worker's own computation keeps its memory bandwidth; 0B/s: no limit"`
	MaxSlowdown     Percent   `yaml:"max_slowdown" doc:"how much slower a worker's steps may be while units are lent; beyond that it lends no more for a while; 0%: no limit"`
	Verify          string    `yaml:"verify" enum:"off,sample,all" doc:"which borrowed blocks a master compares with their checksums when it loads them; sample: each block in one of 16 steps; a block that differs is never used, its sequence is computed again"`
}

// Unit is the elastic unit's policy.
type Unit struct {
	Policy   elastic.Policy `yaml:"policy" enum:"lcm,layer-lcm,padded" doc:"lcm: whole full blocks of both models; layer-lcm: whole layer blocks; padded: smallest unit that wastes at most max_waste"`
	MaxWaste Percent        `yaml:"max_waste" doc:"share of a padded unit that may stay unused, less than 100%"`
}

// ScaleUp says when a worker takes memory back.
type ScaleUp struct {
	Policy string `yaml:"policy" enum:"request" doc:"request: as a request needs it (SwiftCache Algorithm 1)"`
}

// ScaleDown says when a worker offers memory. Parameters of other policies
// than the chosen one are refused.
type ScaleDown struct {
	Policy   elastic.ScaleDownPolicy `yaml:"policy" enum:"window,quantile,hysteresis,floor" doc:"window: keep what the longest recent request needed (Algorithm 1); quantile: what that share of recent requests needed; hysteresis: by occupancy; floor: only what is in use"`
	Window   Duration                `yaml:"window,omitempty" min:"1ms" doc:"window and quantile: how long a request counts as recent; default 60s"`
	Quantile Percent                 `yaml:"quantile,omitempty" doc:"quantile: share of recent requests that must fit; default 99%"`
	Low      Percent                 `yaml:"low,omitempty" doc:"hysteresis: occupancy below which memory is offered; default 40%"`
	High     Percent                 `yaml:"high,omitempty" doc:"hysteresis: occupancy to aim at; default 80%"`
}
