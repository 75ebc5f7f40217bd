package placement

import (
	"cmp"
	"fmt"
	"slices"
)

// Strength says what happens to an instance without room in the spine of its service.
type Strength uint8

// Strengths of the spine rule.
const (
	// Hard makes it wait.
	Hard Strength = iota
	// Preferred lets it run in another spine.
	Preferred
)

// Apart is the level of the topology at which groups of a service must differ.
type Apart uint8

// Levels of the topology at which groups differ.
const (
	ApartBySpine Apart = iota
	ApartByZone
)

// Service says how its instances are placed together. An undeclared service has the zero value.
type Service struct {
	Name   string
	Spines Strength
	// Expected is the demand of one group when all its instances run. The first instance of a group chooses a spine with
	// room for it, times the growth factor. The part that is not yet used stays promised: other services cannot use it.
	// Without Expected only the request of the first instance counts, and nothing is promised.
	Expected Demand
	// Groups is the number of groups; 0 and 1 are one group.
	Groups int
	Apart  Apart
}

func (s *Service) validate() error {
	if s.Name == "" {
		return fmt.Errorf("service has no name")
	}
	e := &s.Expected
	if err := e.Resources.validate(); err != nil {
		return fmt.Errorf("service %q: expected %w", s.Name, err)
	}
	if e.GPUs < 0 || e.Slices < 0 || e.NIC < 0 || s.Groups < 0 {
		return fmt.Errorf("service %q: expected devices and groups must be >= 0", s.Name)
	}
	return nil
}

// service is a Service with the positions of its instances.
type service struct {
	Service
	declared bool
	groups   []*group
}

// group holds the instances of a service that share a spine.
type group struct {
	service *service
	number  int
	count   int
	used    Demand
	spines  []spineCount
	leaves  []leafCount
}

type spineCount struct {
	spine *spine
	count int
}

// leafCount is the number of a group's instances below a leaf; a group sorts them by count, largest first, then by node
// order.
type leafCount struct {
	leaf  *leaf
	count int
}

func compareLeafCounts(a, b leafCount) int {
	return cmp.Or(cmp.Compare(b.count, a.count), compareLeaves(a.leaf, b.leaf))
}

func compareSpineCounts(a, b spineCount) int {
	return cmp.Or(cmp.Compare(b.count, a.count), a.spine.key.compare(b.spine.key))
}

func (s *service) group(number int) *group {
	for _, g := range s.groups {
		if g.number == number {
			return g
		}
	}
	g := &group{service: s, number: number}
	s.groups = append(s.groups, g)
	return g
}

// move adds (1) or subtracts (-1) one instance below a leaf.
func (g *group) move(l *leaf, step int) {
	g.count += step
	at := slices.IndexFunc(g.leaves, func(c leafCount) bool { return c.leaf == l })
	if at < 0 {
		g.leaves = append(g.leaves, leafCount{leaf: l})
		at = len(g.leaves) - 1
	}
	g.leaves[at].count += step
	g.leaves = settle(g.leaves, at, g.leaves[at].count, compareLeafCounts)
	at = slices.IndexFunc(g.spines, func(c spineCount) bool { return c.spine == l.spine })
	if at < 0 {
		g.spines = append(g.spines, spineCount{spine: l.spine})
		at = len(g.spines) - 1
	}
	g.spines[at].count += step
	g.spines = settle(g.spines, at, g.spines[at].count, compareSpineCounts)
}

// settle moves one entry of a sorted list to its position, or removes it if its count is 0.
func settle[T any](list []T, at, count int, compare func(a, b T) int) []T {
	moved := list[at]
	list = slices.Delete(list, at, at+1)
	if count == 0 {
		return list
	}
	at, _ = slices.BinarySearchFunc(list, moved, compare)
	return slices.Insert(list, at, moved)
}

// promise adds (1) or removes (-1) the remaining expected demand of the group on its spine, where other services see it.
func (g *group) promise(growth float64, sign int) {
	if g.count == 0 {
		return
	}
	rest := g.service.Expected.Times(growth)
	rest.subtractDemand(g.used)
	rest = rest.positive()
	if sign > 0 {
		g.spines[0].spine.promised.addDemand(rest)
	} else {
		g.spines[0].spine.promised.subtractDemand(rest)
	}
}

func (g *group) below(l *leaf) bool {
	for _, c := range g.leaves {
		if c.leaf == l {
			return true
		}
	}
	return false
}

// apart reports whether no other group of the service uses the spine, or its zone.
func (g *group) apart(s *spine) bool {
	for _, other := range g.service.groups {
		if other == g {
			continue
		}
		for _, held := range other.spines {
			if held.spine == s || g.service.Apart == ApartByZone && held.spine.key.zone == s.key.zone {
				return false
			}
		}
	}
	return true
}
