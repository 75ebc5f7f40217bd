package placement

import (
	"cmp"
	"fmt"
	"slices"
)

// Strength says what happens to an instance that has no room in the spine of its service.
type Strength uint8

// Strengths of the spine rule.
const (
	// Hard keeps it waiting.
	Hard Strength = iota
	// Preferred lets it run in another spine.
	Preferred
)

// Apart says where groups of one service must differ.
type Apart uint8

// Levels of the topology at which groups differ.
const (
	ApartBySpine Apart = iota
	ApartByZone
)

// Service says how its instances are placed together. A service that was never declared has the zero value.
type Service struct {
	Name   string
	Spines Strength
	// Expected is what one group asks when all its instances run. The first instance of a group takes a spine with that
	// much room, times the growth factor, and what is not used of it yet stays promised: it is no room for the next
	// service. Without it only the request of the first instance counts, and nothing is promised.
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

// service is a Service with where its instances are.
type service struct {
	Service
	declared bool
	groups   []*group
}

// group is the instances of a service that share a spine.
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

// leafCount is how many instances a leaf holds; a group keeps them with the largest count first, then in node order.
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

// move counts one instance more (1) or less (-1) below a leaf.
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

// settle moves one entry of a sorted list to its place, or removes it when its count is 0.
func settle[T any](list []T, at, count int, compare func(a, b T) int) []T {
	moved := list[at]
	list = slices.Delete(list, at, at+1)
	if count == 0 {
		return list
	}
	at, _ = slices.BinarySearchFunc(list, moved, compare)
	return slices.Insert(list, at, moved)
}

// promise moves what the group may still ask onto its spine (1), or from it (-1), where other services see it.
func (g *group) promise(growth float64, sign int) {
	if g.count == 0 {
		return
	}
	rest := g.service.Expected.times(growth)
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

// apart says whether no other group of the service holds the spine, or its zone.
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
