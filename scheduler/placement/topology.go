package placement

import (
	"cmp"
	"slices"
	"strings"
)

// The topology consists of spines, leaves below them and hosts below these, each list in the order of names. This order
// breaks every tie, so it must not depend on the order in which nodes were added.

type spineKey struct{ zone, name string }

func (k spineKey) compare(other spineKey) int {
	return cmp.Or(strings.Compare(k.zone, other.zone), strings.Compare(k.name, other.name))
}

type spine struct {
	key    spineKey
	leaves []*leaf
	free   Demand
	// promised is the remaining expected demand of the services that run here.
	promised Demand
	hosts    int
}

type leaf struct {
	spine *spine
	name  string
	hosts []*host
	// nics counts the NICs of all hosts; uplink is the percent of NICs that instances below the leaf use.
	nics, uplink int
	free         Demand
	bounds       bounds
}

func compareLeaves(a, b *leaf) int {
	return cmp.Or(a.spine.key.compare(b.spine.key), strings.Compare(a.name, b.name))
}

func compareHosts(a, b *host) int {
	return strings.Compare(a.Name, b.Name)
}

// leafOf returns the leaf of a node, and makes it for the first node below it.
func (c *Cluster) leafOf(n *Node) *leaf {
	key := spineKey{n.Zone, n.Spine}
	at, found := slices.BinarySearchFunc(c.spines, key, func(s *spine, key spineKey) int { return s.key.compare(key) })
	if !found {
		c.spines = slices.Insert(c.spines, at, &spine{key: key})
	}
	s := c.spines[at]
	at, found = slices.BinarySearchFunc(s.leaves, n.Leaf, func(l *leaf, name string) int { return strings.Compare(l.name, name) })
	if !found {
		s.leaves = slices.Insert(s.leaves, at, &leaf{spine: s, name: n.Leaf})
	}
	return s.leaves[at]
}

// attach adds a host to its leaf.
func (c *Cluster) attach(h *host) {
	l := h.leaf
	at, _ := slices.BinarySearchFunc(l.hosts, h, compareHosts)
	l.hosts = slices.Insert(l.hosts, at, h)
	l.nics += len(h.NICs)
	l.bounds.stale = true
	l.spine.hosts++
	l.free.addDemand(h.unused())
	l.spine.free.addDemand(h.unused())
	c.hosts[h.Name] = h
}

// detach removes an empty host, and its leaf and spine if it was the last host below them.
func (c *Cluster) detach(h *host) {
	l, s := h.leaf, h.leaf.spine
	at, _ := slices.BinarySearchFunc(l.hosts, h, compareHosts)
	l.hosts = slices.Delete(l.hosts, at, at+1)
	l.nics -= len(h.NICs)
	l.bounds.stale = true
	s.hosts--
	l.free.subtractDemand(h.unused())
	s.free.subtractDemand(h.unused())
	delete(c.hosts, h.Name)
	if len(l.hosts) == 0 {
		s.leaves = slices.DeleteFunc(s.leaves, func(other *leaf) bool { return other == l })
	}
	if s.hosts == 0 {
		c.spines = slices.DeleteFunc(c.spines, func(other *spine) bool { return other == s })
	}
}

// uplinkLimit returns the percent of NICs that instances below a leaf may use.
func (c *Cluster) uplinkLimit(l *leaf) int {
	nics := c.options.UplinkNICs
	if nics == 0 {
		nics = float64(l.nics) / c.options.Oversubscription
	}
	return int(nics * 100 * c.options.UplinkLimit)
}

// uplinkRoom adds up the free bandwidth of the uplinks below a spine.
func (c *Cluster) uplinkRoom(s *spine) int {
	room := 0
	for _, l := range s.leaves {
		room += max(c.uplinkLimit(l)-l.uplink, 0)
	}
	return room
}
