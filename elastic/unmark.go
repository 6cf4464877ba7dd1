package elastic

// UnmarkReclaim takes MarkReclaim back: enough other units came home. The
// borrower chooses which units it returns, so the marked ones are only a hint.
func (u *Units) UnmarkReclaim(owner uint32, e UnitEpoch) error {
	if err := u.held(owner, e, Reclaiming); err != nil {
		return err
	}
	u.unlink(int(e.Unit))
	r := &u.rows[e.Unit]
	r.state = Lent
	u.counts[Reclaiming]--
	u.counts[Lent]++
	u.link(int(e.Unit))
	u.table.setOwner(int(e.Unit), Lent, owner, r.epoch)
	return nil
}
