package placement

import (
	"cmp"
	"slices"
)

// naive defines the rules without an index: every answer comes from a scan of all nodes and instances.
type naive struct {
	options  Options
	nodes    []Node
	services map[string]Service
	running  map[string]Assignment
}

func (n *naive) assignmentsOn(node string) []Assignment {
	var all []Assignment
	for _, a := range n.running {
		if a.Node == node {
			all = append(all, a)
		}
	}
	return all
}

func (n *naive) node(name string) *Node {
	for i := range n.nodes {
		if n.nodes[i].Name == name {
			return &n.nodes[i]
		}
	}
	return nil
}

func (n *naive) free(node *Node) Resources {
	free := node.Resources
	for _, a := range n.assignmentsOn(node.Name) {
		free.subtract(a.Resources)
	}
	return free
}

func (n *naive) busyGPU(node *Node, gpu int) (mask slices8) {
	for _, a := range n.assignmentsOn(node.Name) {
		for _, share := range a.GPUs {
			if share.Index == gpu {
				for s := share.Start; s < share.Start+share.Size; s++ {
					mask |= 1 << s
				}
			}
		}
	}
	return mask
}

func (n *naive) gives(node *Node, gpu int, in *Instance) (count int) {
	busy := n.busyGPU(node, gpu)
	if in.Profile == "" {
		if busy == 0 && !node.GPUs[gpu].MIG {
			return 1
		}
		return 0
	}
	if !node.GPUs[gpu].MIG {
		return 0
	}
	p := profilesOf(node.GPUs[gpu].Model)[in.Profile]
	for _, start := range p.starts {
		if mask := slices8((1<<p.size - 1) << start); busy&mask == 0 {
			busy |= mask
			count++
		}
	}
	return count
}

func (n *naive) freeNIC(node *Node, nic int) int {
	free := 100
	for _, a := range n.assignmentsOn(node.Name) {
		if a.NICIndex == nic {
			free -= a.NIC
		}
	}
	return free
}

func (n *naive) freeCores(node *Node, cpu int) int64 {
	free := node.CPUs[cpu].Cores
	for _, a := range n.assignmentsOn(node.Name) {
		for _, share := range a.CPUs {
			if share.Index == cpu {
				free -= share.Cores
			}
		}
	}
	return free
}

// distance returns the best distance on a node, or Far+1 if the node does not fit.
func (n *naive) distance(node *Node, in *Instance) Distance {
	if !n.free(node).holds(in.Resources) {
		return Far + 1
	}
	gpus := 0
	for gpu := range node.GPUs {
		gpus += n.gives(node, gpu, in)
	}
	if gpus < in.GPUs {
		return Far + 1
	}
	if in.NIC == 0 {
		return SameSwitch
	}
	best := Far + 1
	for nic := range node.NICs {
		if n.freeNIC(node, nic) < in.NIC {
			continue
		}
		for limit := SameSwitch; limit <= Far; limit++ {
			var units, cores int64
			for gpu := range node.GPUs {
				if node.NICs[nic].Distance(node.GPUs[gpu].Locality) <= limit {
					units += int64(n.gives(node, gpu, in))
				}
			}
			for cpu := range node.CPUs {
				if node.NICs[nic].Distance(node.CPUs[cpu].Locality) <= limit {
					cores += n.freeCores(node, cpu)
				}
			}
			if in.GPUs > 0 && units >= int64(in.GPUs) || in.GPUs == 0 && cores >= in.Cores {
				best = min(best, limit)
			}
		}
	}
	return best
}

func (n *naive) densityAllows(node *Node, in *Instance) bool {
	count, limit := 0, in.Density
	for _, a := range n.assignmentsOn(node.Name) {
		if a.Service != in.Service {
			continue
		}
		count++
		if a.Density > 0 && (limit == 0 || a.Density < limit) {
			limit = a.Density
		}
	}
	return limit == 0 || count < limit
}

func (n *naive) uplinkAllows(leaf [3]string, in *Instance) bool {
	return in.NIC == 0 || in.NIC <= n.uplinkLeft(leaf)
}

func (n *naive) uplinkLeft(leaf [3]string) int {
	nics, used := 0, 0
	for i := range n.nodes {
		if leafKey(&n.nodes[i]) != leaf {
			continue
		}
		nics += len(n.nodes[i].NICs)
		for _, a := range n.assignmentsOn(n.nodes[i].Name) {
			used += a.NIC
		}
	}
	capacity := n.options.UplinkNICs
	if capacity == 0 {
		capacity = float64(nics) / n.options.Oversubscription
	}
	return int(capacity*100*n.options.UplinkLimit) - used
}

func leafKey(n *Node) [3]string { return [3]string{n.Zone, n.Spine, n.Leaf} }

// count returns the number of instances of a group on matching nodes.
func (n *naive) count(in *Instance, match func(*Node) bool) (count int) {
	for _, a := range n.running {
		if a.Service == in.Service && a.Group == in.Group && match(n.node(a.Node)) {
			count++
		}
	}
	return count
}

// promised is the remaining expected demand of groups with most of their instances in a spine.
func (n *naive) promised(key [2]string) (sum Demand) {
	for name, service := range n.services {
		for number := range max(service.Groups, 1) {
			in := &Instance{Service: name, Group: number}
			counts := map[[2]string]int{}
			rest := service.Expected.Times(n.options.Growth)
			for _, a := range n.running {
				if a.Service == name && a.Group == number {
					node := n.node(a.Node)
					counts[[2]string{node.Zone, node.Spine}]++
					rest.subtractDemand(DemandOf([]Instance{a.Instance}))
				}
			}
			home := n.count(in, func(*Node) bool { return true }) > 0
			for other, count := range counts {
				if count > counts[key] || count == counts[key] && slices.Compare(other[:], key[:]) < 0 {
					home = false
				}
			}
			if home {
				sum.addDemand(rest.positive())
			}
		}
	}
	return sum
}

// spines returns the spines that an instance may use, best first.
func (n *naive) spines(in *Instance) [][2]string {
	service := n.services[in.Service]
	asked := service.Expected.Times(n.options.Growth)
	if asked == (Demand{}) {
		asked = DemandOf([]Instance{*in})
	}
	type candidate struct {
		key      [2]string
		count    int
		headroom float64
	}
	var candidates []candidate
	for i := range n.nodes {
		key := [2]string{n.nodes[i].Zone, n.nodes[i].Spine}
		if slices.ContainsFunc(candidates, func(c candidate) bool { return c.key == key }) {
			continue
		}
		one := candidate{key: key}
		free := n.freeBelow(func(node *Node) bool { return [2]string{node.Zone, node.Spine} == key })
		uplinks := 0
		var counted [][3]string
		for j := range n.nodes {
			leaf := leafKey(&n.nodes[j])
			if [2]string{leaf[0], leaf[1]} == key && !slices.Contains(counted, leaf) {
				counted = append(counted, leaf)
				uplinks += max(n.uplinkLeft(leaf), 0)
			}
		}
		free.NIC = min(free.NIC, uplinks)
		free.subtractDemand(n.promised(key))
		one.headroom = tightest(free.headroom(asked))
		one.count = n.count(in, func(node *Node) bool { return [2]string{node.Zone, node.Spine} == key })
		if one.count > 0 {
			one.headroom = 0
		}
		candidates = append(candidates, one)
	}
	slices.SortFunc(candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(b.headroom, a.headroom), slices.Compare(a.key[:], b.key[:]))
	})
	home := len(candidates) > 0 && candidates[0].count > 0
	if home && service.Spines == Hard {
		return [][2]string{candidates[0].key}
	}
	var keys [][2]string
	for i, one := range candidates {
		held := false
		for _, a := range n.running {
			node := n.node(a.Node)
			if a.Service == in.Service && a.Group != in.Group && node.Zone == one.key[0] &&
				(node.Spine == one.key[1] || service.Apart == ApartByZone) {
				held = true
			}
		}
		if !held || i == 0 && home {
			keys = append(keys, one.key)
		}
	}
	return keys
}

// find returns the node and distance of the best choice; "" if there is none.
func (n *naive) find(in *Instance) (string, Distance) {
	for _, key := range n.spines(in) {
		type candidate struct {
			leaf     [3]string
			count    int
			headroom float64
		}
		var leaves []candidate
		for i := range n.nodes {
			leaf := leafKey(&n.nodes[i])
			if [2]string{leaf[0], leaf[1]} != key || slices.ContainsFunc(leaves, func(c candidate) bool { return c.leaf == leaf }) {
				continue
			}
			one := candidate{leaf: leaf, count: n.count(in, func(node *Node) bool { return leafKey(node) == leaf })}
			if one.count == 0 {
				one.headroom = n.leafHeadroom(leaf, in)
			}
			leaves = append(leaves, one)
		}
		slices.SortFunc(leaves, func(a, b candidate) int {
			return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(b.headroom, a.headroom), slices.Compare(a.leaf[:], b.leaf[:]))
		})
		for _, one := range leaves {
			if !n.uplinkAllows(one.leaf, in) {
				continue
			}
			best, shortest := "", Far+1
			for i := range n.nodes {
				node := &n.nodes[i]
				if leafKey(node) != one.leaf || !n.densityAllows(node, in) {
					continue
				}
				d := n.distance(node, in)
				if d < shortest || d == shortest && d <= Far && node.Name < best {
					best, shortest = node.Name, d
				}
			}
			if best != "" {
				return best, shortest
			}
		}
	}
	return "", 0
}

// freeBelow adds up the free resources of matching nodes.
func (n *naive) freeBelow(match func(*Node) bool) (free Demand) {
	for j := range n.nodes {
		node := &n.nodes[j]
		if !match(node) {
			continue
		}
		free.add(n.free(node))
		for gpu := range node.GPUs {
			busy := n.busyGPU(node, gpu)
			for s := range slicesPerGPU {
				if node.GPUs[gpu].MIG && busy&(1<<s) == 0 {
					free.Slices++
				}
			}
			if !node.GPUs[gpu].MIG && busy == 0 {
				free.GPUs++
			}
		}
		for nic := range node.NICs {
			free.NIC += n.freeNIC(node, nic)
		}
	}
	return free
}

// leafHeadroom is the free room below a leaf relative to the remaining expected demand of the instance's group.
func (n *naive) leafHeadroom(leaf [3]string, in *Instance) float64 {
	asked := n.services[in.Service].Expected
	for _, a := range n.running {
		if a.Service == in.Service && a.Group == in.Group {
			asked.subtractDemand(DemandOf([]Instance{a.Instance}))
		}
	}
	asked = asked.positive()
	if asked == (Demand{}) {
		asked = DemandOf([]Instance{*in})
	}
	free := n.freeBelow(func(node *Node) bool { return leafKey(node) == leaf })
	free.NIC = min(free.NIC, n.uplinkLeft(leaf))
	return free.headroom(asked)
}

// firstRule returns the first rule that a node does not meet.
func (n *naive) firstRule(node *Node, in *Instance) Rule {
	free, gpus, nic := n.free(node), 0, 0
	for gpu := range node.GPUs {
		gpus += n.gives(node, gpu, in)
	}
	for i := range node.NICs {
		nic = max(nic, n.freeNIC(node, i))
	}
	home := n.count(in, func(*Node) bool { return true }) > 0
	switch {
	case !slices.Contains(n.spines(in), [2]string{node.Zone, node.Spine}) && home && n.services[in.Service].Spines == Hard:
		return RuleSpine
	case !slices.Contains(n.spines(in), [2]string{node.Zone, node.Spine}):
		return RuleGroup
	case free.Cores < in.Cores:
		return RuleCores
	case free.Memory < in.Memory:
		return RuleMemory
	case free.Disk < in.Disk:
		return RuleDisk
	case gpus < in.GPUs:
		return RuleGPU
	case nic < in.NIC:
		return RuleNIC
	case !n.densityAllows(node, in):
		return RuleDensity
	default:
		return RuleUplink
	}
}

// overAllocated names a resource of an assignment that is used twice, or "".
func (n *naive) overAllocated(a *Assignment) string {
	node := n.node(a.Node)
	if !n.free(node).holds(a.Resources) {
		return "resources"
	}
	var cores int64
	for _, share := range a.CPUs {
		if share.Cores <= 0 || n.freeCores(node, share.Index) < share.Cores {
			return "cores of a group"
		}
		cores += share.Cores
	}
	if cores != a.Cores {
		return "sum of cores"
	}
	if len(a.GPUs) != a.Instance.GPUs {
		return "count of GPUs"
	}
	used := map[int]slices8{}
	for _, share := range a.GPUs {
		mask := share.mask()
		if (n.busyGPU(node, share.Index)|used[share.Index])&mask != 0 {
			return "a GPU"
		}
		if (a.Profile != "") != node.GPUs[share.Index].MIG {
			return "mode of a GPU"
		}
		if p := profilesOf(node.GPUs[share.Index].Model)[a.Profile]; a.Profile != "" &&
			(share.Size != p.size || !slices.Contains(p.starts, share.Start)) {
			return "slice position"
		}
		used[share.Index] |= mask
	}
	if a.NIC > 0 && (a.NICIndex < 0 || n.freeNIC(node, a.NICIndex) < a.NIC) {
		return "a NIC"
	}
	return ""
}
