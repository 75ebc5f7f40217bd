package placement

import (
	"fmt"
	"slices"
)

// Question is about an instance that does not run. It is for schedulers that search for a node themselves, because nodes
// also have rules that this package does not know. Its methods must not run at the same time as a change of the cluster;
// Misses and Reject may run at the same time as each other.
type Question struct {
	cluster *Cluster
	in      Instance
	group   *group
}

// Ask checks an instance and returns a question about it. It changes nothing.
func (c *Cluster) Ask(in Instance) (*Question, error) {
	if err := in.validate(); err != nil {
		return nil, err
	}
	s, err := c.serviceOf(&in)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(s.groups, func(g *group) bool { return g.number == in.Group })
	if at < 0 {
		return &Question{c, in, &group{service: s, number: in.Group}}, nil
	}
	return &Question{c, in, s.groups[at]}, nil
}

// Spine names the zone and spine that the instance must use. If it may use several spines, ok is false.
func (q *Question) Spine() (zone, name string, ok bool) {
	if q.group.count == 0 || q.group.service.Spines == Preferred {
		return "", "", false
	}
	key := q.group.spines[0].spine.key
	return key.zone, key.name, true
}

// PrefersSpine reports whether the group of the instance runs, and most of it below the given spine.
func (q *Question) PrefersSpine(zone, name string) bool {
	return q.group.count > 0 && q.group.spines[0].spine.key == spineKey{zone, name}
}

// Spines counts the spines below which the group of the instance runs.
func (q *Question) Spines() int { return len(q.group.spines) }

// Change is what a question assumes: instances that no longer run, and instances that run in addition, by node.
type Change struct {
	Gone []string
	More []Addition
}

// Addition is an instance that a question assumes to run on a node.
type Addition struct {
	Instance
	Node string
}

// Misses returns every rule that a node does not meet, in the order of rules. The assumed change affects the node, and
// the uplink of its leaf, but not the spine of the service.
func (q *Question) Misses(node string, assumed Change) ([]Shortage, error) {
	h := q.cluster.hosts[node]
	if h == nil {
		return nil, fmt.Errorf("node %q is not in the cluster", node)
	}
	if len(assumed.Gone)+len(assumed.More) > 0 {
		h = q.cluster.assume(h, assumed)
	}
	return q.cluster.shortages(nil, h, &q.in, q.group, nil), nil
}

// assume returns a copy of a host after a change.
func (c *Cluster) assume(h *host, assumed Change) *host {
	changed, below := *h, *h.leaf
	changed.leaf = &below
	changed.cores, changed.busy, changed.nic = slices.Clone(h.cores), slices.Clone(h.busy), slices.Clone(h.nic)
	changed.services = slices.Clone(h.services)
	for i := range changed.services {
		changed.services[i].limits = slices.Clone(changed.services[i].limits)
	}
	for _, name := range assumed.Gone {
		r := c.instances[name]
		if r == nil {
			continue
		}
		if r.host.leaf == h.leaf {
			below.uplink -= r.NIC
		}
		if r.host == h {
			changed.unhold(&r.Assignment, r.group.service)
		}
	}
	for i := range assumed.More {
		more := &assumed.More[i]
		if other := c.hosts[more.Node]; other != nil && other.leaf == h.leaf {
			below.uplink += more.NIC
		}
		if more.Node != h.Name {
			continue
		}
		s := c.services[more.Service]
		if s == nil {
			s = &service{Service: Service{Name: more.Service}}
		}
		a := changed.pickAny(&more.Instance)
		changed.hold(&a, s)
	}
	return &changed
}

// Preference ranks leaves for an instance.
type Preference struct {
	question *Question
	ranks    map[*leaf]int
}

// Prefer ranks the leaves of all spines that the instance may use, in the order in which Place searches them.
func (q *Question) Prefer() *Preference {
	c, in, g := q.cluster, &q.in, q.group
	p := &Preference{q, map[*leaf]int{}}
	var spines []*spine
	if g.count > 0 {
		spines = append(spines, g.spines[0].spine)
	}
	if g.count == 0 || g.service.Spines == Preferred {
		for _, s := range c.spinesFor(c.askedFor(in, g), g) {
			if !slices.Contains(spines, s) {
				spines = append(spines, s)
			}
		}
	}
	for _, s := range spines {
		for i := range g.leaves {
			if l := g.leaves[i].leaf; l.spine == s {
				p.ranks[l] = len(p.ranks)
			}
		}
		for _, l := range c.newLeaves(s, in, g) {
			p.ranks[l] = len(p.ranks)
		}
	}
	return p
}

// Rank returns how good a node is; 0 is best, equal ranks are ties. Nodes of leaves where the instance does not fit by
// the rules of this package come last.
func (p *Preference) Rank(node string) int {
	h := p.question.cluster.hosts[node]
	if h == nil {
		return len(p.ranks) * (int(Far) + 1)
	}
	rank, ranked := p.ranks[h.leaf]
	if !ranked {
		rank = len(p.ranks)
	}
	d := Far
	if h.fits(&p.question.in) {
		d, _ = h.nearest(&p.question.in)
	}
	return rank*(int(Far)+1) + int(d)
}

// Reject explains why no node meets every rule. Nodes that do are counted as open.
func (q *Question) Reject() *Rejection {
	return q.cluster.reject(&q.in, q.group, nil)
}
