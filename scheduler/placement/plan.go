package placement

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// PlaceAll places all instances, or none; then the error is the *Rejection of the attempt that placed the most. The
// result does not depend on the order of the list: instances are sorted, group by group. A new group whose service has
// the hard spine rule tries every spine until one takes the whole group.
func (c *Cluster) PlaceAll(instances []Instance) ([]Assignment, error) {
	ordered := slices.Clone(instances)
	slices.SortFunc(ordered, func(a, b Instance) int {
		return cmp.Or(
			cmp.Compare(a.Service, b.Service), cmp.Compare(a.Group, b.Group),
			// GPUs are scarcest, then cores: large requests are placed first, while there is room.
			cmp.Compare(b.GPUs, a.GPUs), cmp.Compare(b.Cores, a.Cores), compareInstances(a, b),
		)
	})
	var placed []Assignment
	for start, end := 0, 0; start < len(ordered); start = end {
		for end = start; end < len(ordered) && sameGroup(&ordered[start], &ordered[end]); {
			end++
		}
		group, err := c.placeGroup(ordered[start:end])
		if err != nil {
			c.undo(placed)
			return nil, err
		}
		placed = append(placed, group...)
	}
	return placed, nil
}

func sameGroup(a, b *Instance) bool {
	return a.Service == b.Service && a.Group == b.Group
}

// placeGroup places all instances of one group, or none.
func (c *Cluster) placeGroup(instances []Instance) ([]Assignment, error) {
	g, err := c.admit(&instances[0])
	if err != nil {
		return nil, err
	}
	defer c.forget(g)
	if g.count > 0 || g.service.Spines == Preferred {
		placed, err := c.placeInOrder(instances, nil)
		if err != nil {
			c.undo(placed)
			return nil, err
		}
		return placed, nil
	}
	asked := g.service.Expected.Times(c.options.Growth)
	if asked == (Demand{}) {
		asked = DemandOf(instances)
	}
	var farthest error
	most := -1
	for _, s := range c.spinesFor(asked, g) {
		placed, err := c.placeInOrder(instances, s)
		if err == nil {
			return placed, nil
		}
		c.undo(placed)
		if rejection := new(Rejection); !errors.As(err, &rejection) {
			return nil, err
		}
		if len(placed) > most {
			most, farthest = len(placed), err
		}
	}
	if farthest == nil {
		farthest = c.reject(&instances[0], g, nil)
	}
	return nil, farthest
}

// placeInOrder places instances until one is rejected, and returns those placed with the error.
func (c *Cluster) placeInOrder(instances []Instance, only *spine) ([]Assignment, error) {
	placed := make([]Assignment, 0, len(instances))
	for i := range instances {
		a, err := c.place(instances[i], only)
		if err != nil {
			return placed, err
		}
		placed = append(placed, a)
	}
	return placed, nil
}

func (c *Cluster) undo(placed []Assignment) {
	for i := range placed {
		c.release(c.instances[placed[i].Name])
	}
}

// Plan returns how many more copies of a set of instances fit, up to a limit, and the rejection of the next copy (nil at
// the limit). It changes nothing.
func (c *Cluster) Plan(set []Instance, limit int) (copies int, blocked *Rejection, err error) {
	if len(set) == 0 {
		return 0, nil, fmt.Errorf("plan: the set has no instances")
	}
	var placed []Assignment
	defer func() { c.undo(placed) }()
	for copies = 0; copies < limit; copies++ {
		named := slices.Clone(set)
		for i := range named {
			named[i].Name = fmt.Sprintf("%s#%d", named[i].Name, copies)
		}
		group, err := c.PlaceAll(named)
		if errors.As(err, &blocked) {
			return copies, blocked, nil
		}
		if err != nil {
			return 0, nil, err
		}
		placed = append(placed, group...)
	}
	return copies, nil, nil
}
