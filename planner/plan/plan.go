// Package plan tells what a configuration will do before anything runs: what
// fits on the devices, what each worker can lend to each master under each unit
// policy, every master's longest context with and without lending, whether
// links are fast enough to hide transfers, and what a planner should be warned
// of. It sweeps settings, recommends changes, and reproduces the configurations
// of SwiftCache's Fig. 9.
//
// Everything that the running system decides too (units, capacities, order of
// lenders) is computed by the code that the running system uses, packages
// elastic, configs and planner. What is estimated is documented where it is
// computed, and in docs/planning.md.
package plan

import (
	"cmp"
	"fmt"

	"github.com/kvlend/kvlend/configs"
	"github.com/kvlend/kvlend/elastic"
	"github.com/kvlend/kvlend/planner"
	"github.com/kvlend/kvlend/planner/facts"
)

// Schema names the form of a Plan as JSON. Fields may be added under the same
// name; one that changes its meaning gets a new name.
const Schema = "kvlend.plan/1"

// DefaultReserve is what each process on a GPU takes beside weights,
// activations and its arena: the driver's context, libraries' workspaces,
// communication buffers, fragmentation. An estimate on the safe side.
const DefaultReserve = 2 << 30

// Options of New, Sweep and Recommend.
type Options struct {
	// Find knows models' geometries, Shapes the rest of their shapes. Default:
	// the catalog, and Shapes.
	Find   configs.GeometryFunc
	Shapes ShapeFunc
	// Reserve is bytes per process on devices of known memory; 0:
	// DefaultReserve, negative: none.
	Reserve int64
	// File is the configuration's name in the plan.
	File string
}

func (o Options) filled() Options {
	if o.Find == nil {
		o.Find = configs.CatalogGeometry
	}
	if o.Shapes == nil {
		o.Shapes = Shapes
	}
	o.Reserve = cmp.Or(o.Reserve, DefaultReserve)
	o.Reserve = max(o.Reserve, 0)
	return o
}

// Plan is a configuration worked out. All sizes are bytes, all times seconds.
type Plan struct {
	Schema   string    `json:"schema"`
	File     string    `json:"file,omitempty"`
	Policy   string    `json:"unit_policy"`
	MaxWaste float64   `json:"max_waste"`
	Fits     bool      `json:"fits"` // no finding is an error
	Devices  []Device  `json:"devices"`
	Models   []Model   `json:"models"`
	Pairs    []Pair    `json:"pairs"`
	Streams  []Stream  `json:"streams"`
	Findings []Finding `json:"findings"`
}

// Device is one device's memory. What a device of unknown memory lacks is 0.
type Device struct {
	Name        string   `json:"name"`
	Kind        string   `json:"kind"`
	GPU         string   `json:"gpu,omitempty"` // the known GPU that kind names
	Memory      int64    `json:"memory"`        // 0: unknown
	Weights     int64    `json:"weights"`
	Activations int64    `json:"activations"`
	Reserve     int64    `json:"reserve"`
	Tails       int64    `json:"tails"` // partly filled blocks, beside the arenas
	Arenas      int64    `json:"arenas"`
	Room        int64    `json:"room_for_arenas"` // memory less all but the arenas; may be negative
	Left        int64    `json:"left"`            // room less arenas; negative: it does not fit
	Models      []string `json:"models"`
}

// Model is one model of the configuration.
type Model struct {
	Name        string `json:"name"`
	Source      string `json:"source"`
	Role        string `json:"role"`
	Device      string `json:"device"`
	Layers      int    `json:"layers"`
	KVHeads     int    `json:"kv_heads"`
	HeadDim     int    `json:"head_dim"`
	BlockTokens int    `json:"block_tokens"`
	ElemBytes   int    `json:"elem_bytes"`
	LayerBlock  int64  `json:"layer_block_bytes"` // M_block, Eq. 1
	FullBlock   int64  `json:"full_block_bytes"`
	BlockElems  int64  `json:"block_elements"` // BE, Eq. 6 and 7
	TokenBytes  int64  `json:"kv_bytes_per_token"`
	Arena       int64  `json:"arena"`
	Tails       int64  `json:"tails"`
	Weights     int64  `json:"weights"`
	Activations int64  `json:"activations"`
	Trained     int    `json:"trained_context"` // tokens
	MaxTokens   int    `json:"max_tokens"`
	Master      *Role  `json:"master,omitempty"`
	Lender      *Lends `json:"worker,omitempty"`
	geometry    elastic.Geometry
	shape       Shape
}

// Role is what only a master has.
type Role struct {
	Buffers   int             `json:"lsc_buffers"`
	KMaster   int             `json:"k_master"`  // layer blocks of its arena, Eq. 3
	KWorkers  int             `json:"k_workers"` // sum of K_i, Eq. 2
	NLSC      int             `json:"n_lsc"`     // Eq. 4
	NRC       int             `json:"n_rc"`      // Eq. 5
	LSCBytes  int64           `json:"lsc_bytes"`
	Alone     int             `json:"max_tokens_without_lending"`
	Ratio     float64         `json:"ratio"` // max_tokens over max_tokens_without_lending
	DiskBlock int             `json:"disk_blocks"`
	ByPolicy  []PolicyContext `json:"by_policy"`
}

// PolicyContext is a master's capacity under one unit policy.
type PolicyContext struct {
	Policy     string  `json:"policy"`
	Configured bool    `json:"configured"`
	KWorkers   int     `json:"k_workers"`
	NLSC       int     `json:"n_lsc"`
	NRC        int     `json:"n_rc"`
	MaxTokens  int     `json:"max_tokens"`
	Ratio      float64 `json:"ratio"`
	Error      string  `json:"error,omitempty"`
}

// Lends is what only a worker has.
type Lends struct {
	Floor     int64   `json:"floor"`
	Unit      int64   `json:"unit_bytes"`
	Units     int     `json:"units"`
	Lendable  int     `json:"lendable_units"`
	Remainder int64   `json:"remainder"` // of the arena behind the last whole unit
	Idle      int64   `json:"idle"`      // arena less floor
	Stuck     int64   `json:"stuck"`     // idle bytes that no unit can lend
	Waste     float64 `json:"waste"`     // largest share of a unit that padding loses
}

// Pair is a master and a worker that it may borrow from.
type Pair struct {
	Master   string       `json:"master"`
	Worker   string       `json:"worker"`
	BEMaster int64        `json:"be_master"` // elements, Eq. 6
	BEWorker int64        `json:"be_worker"` // Eq. 7
	LCM      int64        `json:"lcm"`       // elements, Eq. 8, of these two alone
	MEUm     int64        `json:"meu_master"`
	MEUi     int64        `json:"meu_worker"` // Eq. 9
	Policies []PairPolicy `json:"policies"`
}

// PairPolicy is a pair under one unit policy.
type PairPolicy struct {
	Policy     string `json:"policy"`
	Configured bool   `json:"configured"`
	// Unit is agreed with every master of the worker, so that it may be larger
	// than the pair's own least common multiple.
	Unit int64 `json:"unit_bytes"`
	// MasterPer and WorkerPer are blocks in a unit: full blocks, or layer
	// blocks where LayerBlocks is set.
	MasterPer   int     `json:"master_blocks"`
	WorkerPer   int     `json:"worker_blocks"`
	LayerBlocks bool    `json:"layer_blocks"`
	Waste       float64 `json:"waste"` // share of a unit that the worse of the two leaves unused
	Units       int     `json:"units"`
	Lendable    int     `json:"lendable_units"` // within the master's quota
	K           int     `json:"k"`              // K_i, full blocks
	Stuck       int64   `json:"stuck"`
	Table       int64   `json:"table_bytes"` // of the worker's unit table
	Error       string  `json:"error,omitempty"`
}

// New works out a configuration. The error is one of the configuration's:
// unknown models, geometries that do not go together.
func New(cfg *configs.Config, opt Options) (*Plan, error) {
	opt = opt.filled()
	sys, err := planner.Resolve(cfg, opt.Find)
	if err != nil {
		return nil, err
	}
	p := &Plan{
		Schema: Schema, File: opt.File, Policy: string(cfg.Lending.Unit.Policy), MaxWaste: cfg.Lending.Unit.MaxWaste.Fraction(),
		Pairs: []Pair{}, Streams: []Stream{}, Findings: []Finding{},
	}
	for _, m := range sys.Models {
		pm, err := planModel(m, opt)
		if err != nil {
			return nil, fmt.Errorf("models[%d].source (%s): %w", m.Index, m.Config.Name, err)
		}
		p.Models = append(p.Models, pm)
	}
	p.devices(cfg, opt)
	if err := p.policies(sys, opt); err != nil {
		return nil, err
	}
	p.streams(sys)
	p.findings(sys, opt)
	p.Fits = p.Count(Error) == 0
	return p, nil
}

// Model returns the model of that name, or nil.
func (p *Plan) Model(name string) *Model {
	for i := range p.Models {
		if p.Models[i].Name == name {
			return &p.Models[i]
		}
	}
	return nil
}

// device returns the device of that name; configurations name no others.
func (p *Plan) device(name string) *Device {
	for i := range p.Devices {
		if p.Devices[i].Name == name {
			return &p.Devices[i]
		}
	}
	panic("BUG: no device " + name)
}

func planModel(m *planner.Model, opt Options) (Model, error) {
	shape, err := opt.Shapes(m.Config.Source)
	if err != nil {
		return Model{}, err
	}
	g := m.Geometry
	out := Model{
		Name: m.Config.Name, Source: m.Config.Source, Role: m.Config.Role, Device: m.Config.Device,
		Layers: g.Layers, KVHeads: g.KVHeads, HeadDim: g.HeadDim, BlockTokens: g.BlockTokens, ElemBytes: g.ElemBytes,
		LayerBlock: g.LayerBlockBytes(), FullBlock: g.FullBlockBytes(), BlockElems: g.BlockElems(), TokenBytes: g.TokenBytes(),
		Arena: m.Arena, Tails: m.AllocBytes() - m.Arena, Weights: shape.WeightBytes,
		Activations: shape.ActivationBytes(m.Config.MaxBatchTokens, m.Config.MaxRunning),
		Trained:     shape.MaxContext, geometry: g, shape: shape,
	}
	tokens, alone := m.MaxTokens()
	out.MaxTokens = tokens
	switch m.Config.Role {
	case configs.RoleMaster:
		c := m.Capacity
		out.Master = &Role{
			Buffers: c.Buffers, KMaster: c.KMaster, KWorkers: c.KWorkers, NLSC: c.NLSC, NRC: c.NRC,
			LSCBytes: int64(c.LSCSlots) * out.LayerBlock, Alone: alone, Ratio: ratio(tokens, alone), DiskBlock: c.KWorkers,
		}
		for _, l := range m.Lenders {
			out.Master.DiskBlock -= l.Blocks
		}
	case configs.RoleWorker:
		_, rest := m.Unit.Divide(m.Arena)
		floor := int64(m.Config.Floor)
		out.Lender = &Lends{
			Floor: floor, Unit: m.Unit.Bytes, Units: m.Units, Lendable: m.Lendable, Remainder: rest,
			Idle: m.Arena - floor, Stuck: m.Arena - floor - int64(m.Lendable)*m.Unit.Bytes, Waste: m.Unit.Waste,
		}
	}
	return out, nil
}

func ratio(tokens, alone int) float64 {
	if alone == 0 {
		return 0
	}
	return float64(tokens) / float64(alone)
}

// gpuOf is the GPU that a device's kind names, if it is a known one.
func gpuOf(d configs.Device) (facts.GPU, bool) {
	g, err := facts.LookupGPU(d.Kind)
	return g, err == nil
}

// devices adds up what lies on each device.
func (p *Plan) devices(cfg *configs.Config, opt Options) {
	for _, c := range cfg.Devices {
		d := Device{Name: c.Name, Kind: c.Kind, Memory: int64(c.Memory), Models: []string{}}
		if g, ok := gpuOf(c); ok {
			d.GPU = g.Name
			d.Memory = cmp.Or(d.Memory, g.Memory)
		}
		for _, m := range p.Models {
			if m.Device != c.Name {
				continue
			}
			d.Models = append(d.Models, m.Name)
			d.Weights += m.Weights
			d.Activations += m.Activations
			d.Tails += m.Tails
			d.Arenas += m.Arena
			if d.GPU != "" {
				d.Reserve += opt.Reserve
			}
		}
		if d.Memory > 0 {
			d.Room = d.Memory - d.Weights - d.Activations - d.Reserve - d.Tails
			d.Left = d.Room - d.Arenas
		}
		p.Devices = append(p.Devices, d)
	}
}
