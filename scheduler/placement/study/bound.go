package study

import (
	"math"

	"rowmill.io/scheduler/placement"
	"rowmill.io/scheduler/placement/dataset"
)

// A pair of a CPU and a dense instance of one service crosses leaves unless both are below one leaf. An empty leaf has room
// for at most X of the CPU and Y of the dense instances. If x and y of them are below a leaf, the pairs that do not cross
// add up to sum(x*y) <= X*sum(y) over all leaves, and likewise to at most Y*sum(x). All other pairs cross, whatever the
// placement. The bound ignores that services compete for leaves, and the rules of spine, density and uplink, so it holds
// for every policy.

// leafMost is the largest number of instances of one service, by role, below one leaf that is otherwise empty.
type leafMost [3]int

// leafMosts returns the numbers for each service. It counts as if every instance were as small as the smallest request of
// its service and role, in each resource by itself.
func leafMosts(nodes []placement.Node, jobs []dataset.Lifetime) map[string]leafMost {
	type part struct {
		service string
		role    placement.Role
	}
	smallest := map[part]placement.Instance{}
	for i := range jobs {
		in := jobs[i].Instance
		key := part{in.Service, in.Role}
		least, known := smallest[key]
		if !known {
			smallest[key] = in
			continue
		}
		least.Cores, least.Memory, least.Disk = min(least.Cores, in.Cores), min(least.Memory, in.Memory), min(least.Disk, in.Disk)
		least.GPUs, least.NIC = min(least.GPUs, in.GPUs), min(least.NIC, in.NIC)
		smallest[key] = least
	}
	leaves := map[[2]string][]*placement.Node{}
	for i := range nodes {
		leaf := [2]string{nodes[i].Spine, nodes[i].Leaf}
		leaves[leaf] = append(leaves[leaf], &nodes[i])
	}
	mosts := map[string]leafMost{}
	for key, least := range smallest {
		most := mosts[key.service]
		for _, below := range leaves {
			count := 0
			for _, n := range below {
				count += nodeMost(n, &least)
			}
			most[key.role] = max(most[key.role], count)
		}
		mosts[key.service] = most
	}
	return mosts
}

// nodeMost returns how many instances with equal requests an empty node holds.
func nodeMost(n *placement.Node, in *placement.Instance) int {
	most := int64(math.MaxInt32)
	for _, one := range [...][2]int64{
		{n.Cores, in.Cores}, {n.Memory, in.Memory}, {n.Disk, in.Disk}, {int64(len(n.GPUs)), int64(in.GPUs)},
	} {
		if one[1] > 0 {
			most = min(most, one[0]/one[1])
		}
	}
	if in.NIC > 0 {
		most = min(most, int64(len(n.NICs)*(100/in.NIC)))
	}
	return int(most)
}

// together returns the most pairs of these CPU and dense instances that can be below equal leaves.
func (m leafMost) together(cpu, dense int) int {
	return min(cpu*dense, cpu*m[placement.RoleDense], dense*m[placement.RoleCPU])
}
