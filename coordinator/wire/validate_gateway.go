package wire

import "fmt"

// Validate implements Message.
func (m *Submit) Validate() error {
	var c check
	c.name("ID", m.ID)
	c.length("Tokens", len(m.Tokens), MaxTokens)
	c.count("MaxTokens", int64(m.MaxTokens), 0, MaxTokens)
	c.length("StopIDs", len(m.StopIDs), MaxStops)
	m.Sampling.check(&c)
	c.count("Priority", int64(m.Priority), -MaxPriority, MaxPriority)
	c.text("Tenant", m.Tenant, MaxName)
	c.length("Salt", len(m.Salt), MaxSalt)
	return c.err
}

// check bounds the numbers; what they mean is package sampling's business.
func (s *Sampling) check(c *check) {
	c.number("Sampling.Temperature", float64(s.Temperature))
	c.count("Sampling.TopK", int64(s.TopK), -1, maxCount)
	c.number("Sampling.TopP", float64(s.TopP))
	c.number("Sampling.MinP", float64(s.MinP))
	c.number("Sampling.RepetitionPenalty", float64(s.RepetitionPenalty))
	c.number("Sampling.PresencePenalty", float64(s.PresencePenalty))
	c.number("Sampling.FrequencyPenalty", float64(s.FrequencyPenalty))
	c.count("Sampling.Logprobs", int64(s.Logprobs), -1, MaxTop)
	c.length("Sampling.LogitBias", len(s.LogitBias), MaxLogitBias)
	for id, v := range s.LogitBias {
		if v-v != 0 { // NaN or infinite
			c.fail("Sampling.LogitBias[%d]: %v, must be finite", id, v)
		}
	}
}

// Validate implements Message.
func (m *Cancel) Validate() error {
	var c check
	c.name("ID", m.ID)
	return c.err
}

// Validate implements Message.
func (m *Chunk) Validate() error {
	var c check
	c.name("ID", m.ID)
	c.count("First", int64(m.First), 0, MaxTokens)
	c.length("Tokens", len(m.Tokens), MaxTokens)
	if n := len(m.Logprobs); n != 0 && n != len(m.Tokens) {
		c.fail("Logprobs: %d entries, must be 0 or one per token (%d)", n, len(m.Tokens))
	}
	for i, v := range m.Logprobs {
		if v-v != 0 {
			c.fail("Logprobs[%d]: %v, must be finite", i, v)
		}
	}
	if n := len(m.Top); n != 0 && n != len(m.Tokens) {
		c.fail("Top: %d entries, must be 0 or one per token (%d)", n, len(m.Tokens))
	}
	for i := range m.Top {
		checkTop(&c, i, m.Top[i])
	}
	return c.err
}

func checkTop(c *check, i int, top []TokenLogprob) {
	if len(top) > MaxTop {
		c.fail("Top[%d]: %d entries, at most %d are accepted", i, len(top), MaxTop)
		return
	}
	for j := range top {
		if v := top[j].Logprob; v-v != 0 {
			c.fail("Top[%d][%d].Logprob: %v, must be finite", i, j, v)
		}
	}
}

// Validate implements Message.
func (m *Finished) Validate() error {
	var c check
	c.name("ID", m.ID)
	c.text("Reason", m.Reason, MaxName)
	c.count("Tokens", int64(m.Tokens), 0, MaxTokens)
	c.count("Prompt", int64(m.Prompt), 0, MaxTokens)
	c.count("Cached", int64(m.Cached), 0, MaxTokens)
	c.count("Preemptions", int64(m.Preemptions), 0, maxCount)
	c.count("Borrowed", int64(m.Borrowed), 0, maxCount)
	c.millis("QueueMS", m.QueueMS)
	c.millis("PrefillMS", m.PrefillMS)
	c.millis("TotalMS", m.TotalMS)
	m.Receipt.check(&c)
	return c.err
}

func (r *Receipt) check(c *check) {
	c.count("Receipt.Local", int64(r.Local), 0, MaxTokens)
	c.count("Receipt.Borrowed", int64(r.Borrowed), 0, MaxTokens)
	c.count("Receipt.Host", int64(r.Host), 0, MaxTokens)
	c.count("Receipt.Pool", int64(r.Pool), 0, MaxTokens)
	c.count("Receipt.Declined", int64(r.Declined), 0, MaxTokens)
	c.millis("Receipt.PredictedMS", r.PredictedMS)
	c.millis("Receipt.RecomputeMS", r.RecomputeMS)
}

// Validate implements Message.
func (m *Failed) Validate() error {
	var c check
	c.name("ID", m.ID)
	c.text("Code", m.Code, MaxName)
	c.text("Message", m.Message, MaxText)
	c.span("RetryAfter", m.RetryAfter)
	return c.err
}

// Validate implements Message.
func (m *StatusAsk) Validate() error {
	var c check
	c.id("ID", m.ID)
	return c.err
}

// Validate implements Message.
func (m *Status) Validate() error {
	var c check
	c.id("ID", m.ID)
	m.Model.check(&c)
	c.count("Running", int64(m.Running), 0, maxCount)
	c.count("Waiting", int64(m.Waiting), 0, maxCount)
	m.Blocks.check(&c)
	c.count("Loaded", m.Loaded, 0, maxCount)
	c.count("Stored", m.Stored, 0, maxCount)
	c.text("Kernels", m.Kernels, MaxName)
	c.disks(m.Disks)
	c.length("Degraded", len(m.Degraded), MaxDegraded)
	for i, d := range m.Degraded {
		c.text(fmt.Sprintf("Degraded[%d]", i), d, MaxText)
	}
	c.length("Units", len(m.Units), MaxPeers)
	for i := range m.Units {
		m.Units[i].check(&c, i)
	}
	m.checkHealth(&c)
	return c.err
}

func (m *ModelStatus) check(c *check) {
	c.text("Model.Name", m.Name, MaxName)
	c.text("Model.Role", m.Role, MaxName)
	c.count("Model.PID", int64(m.PID), 0, maxCount)
	c.count("Model.Arena", m.Arena, 0, maxCount)
	c.count("Model.MaxTokens", int64(m.MaxTokens), 0, maxCount)
	c.count("Model.MaxTokensAlone", int64(m.MaxTokensAlone), 0, maxCount)
	c.count("Model.UsableTokens", int64(m.UsableTokens), 0, maxCount)
	c.count("Model.NLSC", int64(m.NLSC), 0, maxCount)
	c.count("Model.NRC", int64(m.NRC), 0, maxCount)
}

func (b *BlockStatus) check(c *check) {
	c.count("Blocks.LocalUsed", int64(b.LocalUsed), 0, maxCount)
	c.count("Blocks.LocalFree", int64(b.LocalFree), 0, maxCount)
	c.count("Blocks.BorrowedUsed", int64(b.BorrowedUsed), 0, maxCount)
	c.count("Blocks.BorrowedFree", int64(b.BorrowedFree), 0, maxCount)
	c.count("Blocks.LocalKept", int64(b.LocalKept), 0, maxCount)
	c.count("Blocks.BorrowedKept", int64(b.BorrowedKept), 0, maxCount)
	c.count("Blocks.HostKept", int64(b.HostKept), 0, maxCount)
	c.count("Blocks.HostFree", int64(b.HostFree), 0, maxCount)
	c.count("Blocks.PoolKept", int64(b.PoolKept), 0, maxCount)
	c.count("Blocks.PoolFree", int64(b.PoolFree), 0, maxCount)
	c.count("Blocks.HostUsed", int64(b.HostUsed), 0, maxCount)
	c.count("Blocks.PoolUsed", int64(b.PoolUsed), 0, maxCount)
}

func (u *UnitCount) check(c *check, i int) {
	c.text(fmt.Sprintf("Units[%d].Peer", i), u.Peer, MaxName)
	for _, v := range [...]int{u.Local, u.Lent, u.Reclaiming, u.Fenced} {
		if v < 0 || v > MaxUnits {
			c.fail("Units[%d]: a count of %d, must be from 0 to %d", i, v, MaxUnits)
		}
	}
}
