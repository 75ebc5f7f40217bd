package placement

import (
	"fmt"
	"slices"
)

// Locality is a position on the buses of a node. A negative number means unknown, which is near nothing.
type Locality struct {
	// Switch is the PCIe switch of a device; for a group of cores, the switch at its root complex.
	Switch int
	// NUMA is the NUMA node.
	NUMA int
}

// Anywhere is the locality of a device with unknown position.
var Anywhere = Locality{Switch: -1, NUMA: -1}

// Distance is the distance between two devices of a node.
type Distance uint8

// Distances in the order of preference.
const (
	SameSwitch Distance = iota
	SameNUMA
	Far
)

func (d Distance) String() string {
	return [...]string{"the same PCIe switch", "the same NUMA node", "other NUMA nodes, or unknown positions"}[d]
}

// Distance returns the distance between two positions on one node.
func (l Locality) Distance(other Locality) Distance {
	switch {
	case l.Switch >= 0 && l.Switch == other.Switch:
		return SameSwitch
	case l.NUMA >= 0 && l.NUMA == other.NUMA:
		return SameNUMA
	default:
		return Far
	}
}

// CPU is a group of cores with one locality.
type CPU struct {
	Locality
	// Cores counts thousandths of a core.
	Cores int64
}

// GPU is one GPU: allocated as a whole, or in MIG mode by profile.
type GPU struct {
	Locality
	// ID distinguishes the GPUs of a node; if empty, the position in the list is used.
	ID string
	// Model selects the table of MIG profiles; GPUs of other models can only be allocated as a whole.
	Model string
	// MIG marks a GPU in MIG mode: it accepts profiles, never a request for a whole GPU.
	MIG bool
}

// NIC is one network interface, shared in percent.
type NIC struct {
	Locality
	// ID distinguishes the NICs of a node; if empty, the position in the list is used.
	ID string
}

// Node is one machine. Nodes without Zone, Spine and Leaf together form a zone, spine and leaf.
type Node struct {
	Name              string
	Zone, Spine, Leaf string
	Resources
	// CPUs split the cores by locality; an empty list means one group of unknown locality.
	CPUs []CPU
	GPUs []GPU
	NICs []NIC
}

func (n *Node) validate() error {
	if n.Name == "" {
		return fmt.Errorf("node has no name")
	}
	if err := n.Resources.validate(); err != nil {
		return fmt.Errorf("node %q: %w", n.Name, err)
	}
	var cores int64
	for i, cpu := range n.CPUs {
		if cpu.Cores < 0 {
			return fmt.Errorf("node %q: cores of CPU group %d must be >= 0, got %d", n.Name, i, cpu.Cores)
		}
		cores += cpu.Cores
	}
	if len(n.CPUs) > 0 && cores != n.Cores {
		return fmt.Errorf("node %q: CPU groups have %d millicores, the node %d", n.Name, cores, n.Cores)
	}
	var seen []string
	for i := range n.GPUs {
		gpu := &n.GPUs[i]
		if gpu.MIG && profilesOf(gpu.Model) == nil {
			return fmt.Errorf("node %q: GPU %d is in MIG mode, but model %q has no known profiles", n.Name, i, gpu.Model)
		}
		seen = append(seen, "GPU "+deviceID(gpu.ID, i))
	}
	for i := range n.NICs {
		seen = append(seen, "NIC "+deviceID(n.NICs[i].ID, i))
	}
	slices.Sort(seen)
	for i := 1; i < len(seen); i++ {
		if seen[i] == seen[i-1] {
			return fmt.Errorf("node %q: %s is listed twice; give each device its own ID", n.Name, seen[i])
		}
	}
	return nil
}

func deviceID(id string, position int) string {
	if id == "" {
		return fmt.Sprint(position)
	}
	return id
}
