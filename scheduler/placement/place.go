package placement

import (
	"cmp"
	"slices"
)

// Place puts an instance on the best node and returns node and devices. If no node fits, the error is a *Rejection.
func (c *Cluster) Place(in Instance) (Assignment, error) {
	return c.place(in, nil)
}

// Find returns the result of Place without changing anything.
func (c *Cluster) Find(in Instance) (Assignment, error) {
	g, err := c.admit(&in)
	if err != nil {
		return Assignment{}, err
	}
	defer c.forget(g)
	if h := c.search(&in, g, nil); h != nil {
		return h.pick(&in), nil
	}
	return Assignment{}, c.reject(&in, g, nil)
}

// place implements Place; if only is given, it uses only that spine.
func (c *Cluster) place(in Instance, only *spine) (Assignment, error) {
	g, err := c.admit(&in)
	if err != nil {
		return Assignment{}, err
	}
	defer c.forget(g)
	h := c.search(&in, g, only)
	if h == nil {
		return Assignment{}, c.reject(&in, g, only)
	}
	return c.assign(h, g, &in), nil
}

// search returns the best host, or nil. Algorithm 1, line 2: choose the spine of the service.
func (c *Cluster) search(in *Instance, g *group, only *spine) *host {
	if only != nil {
		return c.searchSpine(only, in, g)
	}
	if g.count > 0 {
		home := g.spines[0].spine
		if h := c.searchSpine(home, in, g); h != nil || g.service.Spines == Hard {
			return h
		}
	}
	for _, s := range c.spinesFor(c.askedFor(in, g), g) {
		if h := c.searchSpine(s, in, g); h != nil {
			return h
		}
	}
	return nil
}

// askedFor returns the demand by which the spine of a new group is chosen.
func (c *Cluster) askedFor(in *Instance, g *group) Demand {
	if asked := g.service.Expected.Times(c.options.Growth); asked != (Demand{}) {
		return asked
	}
	return DemandOf([]Instance{*in})
}

// spinesFor returns the spines that a group may use, best first. A group with instances prefers the spine with most of
// them. A new group compares free room with demand in the scarcest resource: first the tightest spine with room for all
// of the demand, which leaves spines for large services, then the roomiest one. Ties are broken by node order.
func (c *Cluster) spinesFor(asked Demand, g *group) []*spine {
	type candidate struct {
		spineCount
		rank float64
	}
	var candidates []candidate
	for _, s := range c.spines {
		if !g.apart(s) {
			continue
		}
		one := candidate{spineCount: spineCount{spine: s}}
		if at := slices.IndexFunc(g.spines, func(c spineCount) bool { return c.spine == s }); at >= 0 {
			one.count = g.spines[at].count
		} else {
			room := s.free
			room.NIC = min(room.NIC, c.uplinkRoom(s))
			one.rank = tightest(room.Plus(s.promised, -1).headroom(asked))
		}
		candidates = append(candidates, one)
	}
	slices.SortStableFunc(candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(b.rank, a.rank))
	})
	spines := make([]*spine, len(candidates))
	for i := range candidates {
		spines[i] = candidates[i].spine
	}
	return spines
}

// tightest ranks headroom: above 1 smaller is better, below 1 larger is better.
func tightest(headroom float64) float64 {
	if headroom >= 1 {
		return 1 + 1/headroom
	}
	return headroom
}

// searchSpine implements line 3: leaves with most instances first, then the other leaves.
func (c *Cluster) searchSpine(s *spine, in *Instance, g *group) *host {
	for i := range g.leaves {
		if l := g.leaves[i].leaf; l.spine == s {
			if h := c.searchLeaf(l, in, g.service); h != nil {
				return h
			}
		}
	}
	for _, l := range c.newLeaves(s, in, g) {
		if h := c.searchLeaf(l, in, g.service); h != nil {
			return h
		}
	}
	return nil
}

// newLeaves returns the leaves of a spine without instances of a group, sorted by headroom for the group's remaining
// expected demand, largest first, so that a growing service stays below few leaves.
func (c *Cluster) newLeaves(s *spine, in *Instance, g *group) []*leaf {
	asked := g.service.Expected.Plus(g.used, -1).positive()
	if asked == (Demand{}) {
		asked = DemandOf([]Instance{*in})
	}
	type candidate struct {
		leaf     *leaf
		headroom float64
	}
	candidates := make([]candidate, 0, len(s.leaves))
	for _, l := range s.leaves {
		if !g.below(l) && l.admits(in) {
			room := l.free
			room.NIC = min(room.NIC, c.uplinkLimit(l)-l.uplink)
			candidates = append(candidates, candidate{l, room.headroom(asked)})
		}
	}
	slices.SortStableFunc(candidates, func(a, b candidate) int { return cmp.Compare(b.headroom, a.headroom) })
	leaves := make([]*leaf, len(candidates))
	for i := range candidates {
		leaves[i] = candidates[i].leaf
	}
	return leaves
}

// searchLeaf implements lines 4 to 13: the host with the shortest path between NIC and devices, the first of equal ones.
func (c *Cluster) searchLeaf(l *leaf, in *Instance, s *service) *host {
	if l.uplink+in.NIC > c.uplinkLimit(l) && in.NIC > 0 || !l.admits(in) {
		return nil
	}
	var best *host
	shortest := Far + 1
	for _, h := range l.hosts {
		if !h.fits(in) || h.dense(s, in.Density) {
			continue
		}
		if d, _ := h.nearest(in); d < shortest {
			best, shortest = h, d
		}
		if shortest == SameSwitch {
			break
		}
	}
	return best
}
