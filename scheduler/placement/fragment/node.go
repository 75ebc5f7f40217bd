// Package fragment measures stranded resources: free GPUs and cores that no instance of a class can use.
//
// GPUs are shared in thousandths, as in the 2023 trace. GPU fragments are measured as in FGD (USENIX ATC 2023).
package fragment

import "slices"

// Whole is the share of a whole GPU.
const Whole = 1000

// Node is a node with its free resources.
type Node struct {
	Name string
	// Cores counts thousandths of a core; Memory and Disk count MiB.
	Cores, Memory, Disk int64
	// GPUs holds the free thousandths of each GPU, NICs the free percent of each NIC.
	GPUs, NICs []int
}

// Grant lists the devices that a pod gets; NIC is -1 if it requests none.
type Grant struct {
	GPUs []int
	NIC  int
}

// NewNode returns an empty node.
func NewNode(name string, cores, memory int64, gpus int) Node {
	node := Node{Name: name, Cores: cores, Memory: memory, GPUs: make([]int, gpus)}
	for i := range node.GPUs {
		node.GPUs[i] = Whole
	}
	return node
}

// Clone returns a deep copy.
func (n *Node) Clone() Node {
	clone := *n
	clone.GPUs = slices.Clone(n.GPUs)
	clone.NICs = slices.Clone(n.NICs)
	return clone
}

// FreeGPU returns the free share of all GPUs together, in thousandths.
func (n *Node) FreeGPU() int {
	sum := 0
	for _, free := range n.GPUs {
		sum += free
	}
	return sum
}

// gpusFor reports whether enough GPUs have the free share that a pod requests.
func (n *Node) gpusFor(p *Pod) bool {
	need := p.GPUs
	for _, free := range n.GPUs {
		if need == 0 {
			break
		}
		if free >= p.Share {
			need--
		}
	}
	return need <= 0
}

// nicFor returns the first NIC with the free share that a pod requests, or -1.
func (n *Node) nicFor(p *Pod) int {
	return slices.IndexFunc(n.NICs, func(free int) bool { return free >= p.NIC })
}

// Fits reports whether a pod fits.
func (n *Node) Fits(p *Pod) bool {
	return n.Cores >= p.Cores && n.Memory >= p.Memory && n.Disk >= p.Disk &&
		(p.GPUs == 0 || n.gpusFor(p)) && (p.NIC == 0 || n.nicFor(p) >= 0)
}

// Take subtracts the resources of a pod: on these GPUs, and on the first NIC with room.
func (n *Node) Take(p *Pod, gpus []int) Grant {
	grant := Grant{GPUs: gpus, NIC: -1}
	if p.NIC > 0 {
		grant.NIC = n.nicFor(p)
	}
	n.Hold(p, grant)
	return grant
}

// Hold subtracts the resources of a pod whose devices are known.
func (n *Node) Hold(p *Pod, grant Grant) { n.move(p, grant, 1) }

// Give adds the resources of a pod back.
func (n *Node) Give(p *Pod, grant Grant) { n.move(p, grant, -1) }

func (n *Node) move(p *Pod, grant Grant, sign int) {
	n.Cores -= int64(sign) * p.Cores
	n.Memory -= int64(sign) * p.Memory
	n.Disk -= int64(sign) * p.Disk
	for _, gpu := range grant.GPUs {
		n.GPUs[gpu] -= sign * p.Share
	}
	if grant.NIC >= 0 {
		n.NICs[grant.NIC] -= sign * p.NIC
	}
}

// TightestGPUs returns the GPUs for a pod that fits: the fullest with enough free share, and the first of equal ones.
func (n *Node) TightestGPUs(p *Pod) []int {
	if p.GPUs == 0 {
		return nil
	}
	if p.GPUs == 1 {
		best := -1
		for gpu, free := range n.GPUs {
			if free >= p.Share && (best < 0 || free < n.GPUs[best]) {
				best = gpu
			}
		}
		return []int{best}
	}
	gpus := make([]int, 0, p.GPUs)
	for gpu, free := range n.GPUs {
		if free >= p.Share && len(gpus) < p.GPUs {
			gpus = append(gpus, gpu)
		}
	}
	return gpus
}
