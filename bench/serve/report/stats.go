package report

import (
	"math"
	"slices"
	"time"
)

// Dist is a distribution of times in milliseconds.
type Dist struct {
	N    int     `json:"n"`
	Mean float64 `json:"mean_ms"`
	P50  float64 `json:"p50_ms"`
	P90  float64 `json:"p90_ms"`
	P99  float64 `json:"p99_ms"`
	Max  float64 `json:"max_ms"`
}

// Distribution is the distribution of values, exactly. It sorts them.
func Distribution(ms []float64) Dist {
	if len(ms) == 0 {
		return Dist{}
	}
	slices.Sort(ms)
	var sum float64
	for _, v := range ms {
		sum += v
	}
	return Dist{N: len(ms), Mean: sum / float64(len(ms)), P50: Percentile(ms, 50), P90: Percentile(ms, 90),
		P99: Percentile(ms, 99), Max: ms[len(ms)-1]}
}

// Percentile is the smallest of the sorted values that at least q percent of
// them do not exceed (nearest rank); q is from 1 to 100.
func Percentile(sorted []float64, q int) float64 {
	return sorted[(len(sorted)*q+99)/100-1]
}

// Median is that of unsorted values: with an even number of them, the mean of
// the middle two. NaN if there are none.
func Median(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(values))
	if n%2 == 1 {
		return s[n/2]
	}
	return (s[n/2-1] + s[n/2]) / 2
}

// Summary is what samples amount to. Latencies are those of whole answers.
type Summary struct {
	Wall     time.Duration  `json:"wall_ns"` // from the start to the last answer
	Requests int            `json:"requests"`
	OK       int            `json:"ok"`
	Errors   map[string]int `json:"errors"` // by code
	Retries  int            `json:"retries"`

	TTFT Dist `json:"ttft"` // from when the request was due
	// Later is TTFT without the first turns of sessions, which have no history.
	Later Dist `json:"ttft_later_turns"`
	TPOT  Dist `json:"time_per_output_token"`
	E2E   Dist `json:"end_to_end"`
	// Lag is how late the generator sent.
	Lag Dist `json:"send_lag"`

	RequestsPerSecond float64 `json:"requests_per_second"`
	OutputPerSecond   float64 `json:"output_tokens_per_second"`
	PromptTokens      int     `json:"prompt_tokens"`
	OutputTokens      int     `json:"output_tokens"`
	CachedTokens      int     `json:"cached_tokens"`
	// Receipts is how many answers told their tiers; Tiers is the sum, Slower
	// how many were predicted to take longer with the cache than without.
	Receipts int   `json:"receipts"`
	Tiers    Tiers `json:"tiers"`
	Slower   int   `json:"predicted_slower_than_recompute"`
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Summarise works out a summary; wall is the time that the load took.
func Summarise(samples []Sample, wall time.Duration) Summary {
	s := Summary{Wall: wall, Requests: len(samples), Errors: map[string]int{}}
	var ttft, later, tpot, e2e, lag []float64
	for i := range samples {
		v := &samples[i]
		lag = append(lag, ms(v.Sent-v.Ready))
		s.Retries += v.Retries
		if v.Code != CodeOK {
			s.Errors[v.Code]++
			continue
		}
		s.OK++
		s.PromptTokens += v.Prompt
		s.OutputTokens += v.Output
		s.CachedTokens += v.Cached
		ttft = append(ttft, ms(v.TTFT()))
		if v.Turn > 0 {
			later = append(later, ms(v.TTFT()))
		}
		e2e = append(e2e, ms(v.End-v.Due))
		if v.Output > 1 {
			tpot = append(tpot, ms(v.End-v.First)/float64(v.Output-1))
		}
		if t := v.Receipt; t != nil {
			s.Receipts++
			s.Tiers.add(t)
			if t.RecomputeMS > 0 && t.PredictedMS > t.RecomputeMS {
				s.Slower++
			}
		}
	}
	s.Later = Distribution(later)
	s.TTFT, s.TPOT, s.E2E, s.Lag = Distribution(ttft), Distribution(tpot), Distribution(e2e), Distribution(lag)
	if sec := wall.Seconds(); sec > 0 {
		s.RequestsPerSecond, s.OutputPerSecond = float64(s.OK)/sec, float64(s.OutputTokens)/sec
	}
	return s
}

// Ratio compares a configuration with the first one of the same model and of as
// fast links: medians over the rounds, divided. Below 1 is less than the first's. 0 stands for no figure.
type Ratio struct {
	Config string  `json:"config"`
	Base   string  `json:"base"`
	TTFT   Triple  `json:"ttft"`
	Later  Triple  `json:"ttft_later_turns"`
	TPOT   Triple  `json:"time_per_output_token"`
	E2E    Triple  `json:"end_to_end"`
	Output float64 `json:"output_tokens_per_second"`
}

// Triple is a ratio of each percentile.
type Triple struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

func (r *Result) ratios() []Ratio {
	var out []Ratio
	configs := r.Configs
	for i := range configs {
		base := slices.IndexFunc(configs, func(c Config) bool { return c.LinkTimes == configs[i].LinkTimes && c.Model == configs[i].Model })
		if base == i {
			continue
		}
		of := func(get func(*Summary) float64) float64 {
			v := medianOf(&configs[i], get) / medianOf(&configs[base], get)
			if math.IsNaN(v) || math.IsInf(v, 0) {
				return 0
			}
			return v
		}
		triple := func(get func(*Summary) *Dist) Triple {
			return Triple{
				of(func(s *Summary) float64 { return get(s).P50 }),
				of(func(s *Summary) float64 { return get(s).P90 }),
				of(func(s *Summary) float64 { return get(s).P99 }),
			}
		}
		out = append(out, Ratio{
			Config: r.name(&configs[i]), Base: r.name(&configs[base]),
			TTFT:   triple(func(s *Summary) *Dist { return &s.TTFT }),
			Later:  triple(func(s *Summary) *Dist { return &s.Later }),
			TPOT:   triple(func(s *Summary) *Dist { return &s.TPOT }),
			E2E:    triple(func(s *Summary) *Dist { return &s.E2E }),
			Output: of(func(s *Summary) float64 { return s.OutputPerSecond }),
		})
	}
	return out
}

func medianOf(c *Config, get func(*Summary) float64) float64 {
	var v []float64
	for i := range c.Rounds {
		v = append(v, get(&c.Rounds[i].Summary))
	}
	return Median(v)
}
