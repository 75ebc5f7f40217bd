package study

import (
	"fmt"

	"rowmill.io/scheduler/placement"
)

// kind is a kind of machine. Names sort kinds with many cores before kinds with many GPUs, and larger ones last. Node
// order breaks ties, so CPU instances leave GPU nodes and the largest nodes free if they can.
type kind struct {
	name                string
	cores, memory, disk int64
	gpus                int
	model               string
	mig                 bool
}

// Machines of the paper: inference nodes have one GPU and 128 or 192 cores; training nodes have eight GPUs and fewer
// than 20 cores per GPU. Memory and disk are not published; these values suffice for 8 GiB and 60 GiB per core.
var (
	inference128 = kind{name: "a128", cores: 128, memory: 1024, disk: 7680, gpus: 1}
	inference192 = kind{name: "b192", cores: 192, memory: 1536, disk: 7680, gpus: 1}
	training     = kind{name: "c8x16", cores: 128, memory: 1024, disk: 7680, gpus: 8}
	a100         = kind{name: "a100", cores: 128, memory: 1024, disk: 7680, gpus: 8, model: "A100-80GB"}
	a100MIG      = kind{name: "a100", cores: 128, memory: 1024, disk: 7680, gpus: 8, model: "A100-80GB", mig: true}
)

func cpuOnly(cores int64) kind {
	return kind{name: fmt.Sprintf("cpu%d", cores), cores: cores, memory: 8 * cores, disk: 7680}
}

// node makes a machine. Its cores are split over two NUMA nodes. A machine with at most one GPU has one NIC, on the PCIe
// switch of the first half and of the GPU. A machine with eight GPUs has a NIC and two GPUs on each of four switches.
func (k kind) node(spine, leaf, number int) placement.Node {
	n := placement.Node{
		Name:  fmt.Sprintf("%s-%02d-%02d-%03d", k.name, spine, leaf, number),
		Zone:  "zone",
		Spine: fmt.Sprintf("spine-%02d", spine),
		Leaf:  fmt.Sprintf("leaf-%02d", leaf),
		Resources: placement.Resources{
			Cores: 1000 * k.cores, Memory: 1024 * k.memory, Disk: 1024 * k.disk,
		},
	}
	near := placement.Locality{Switch: 0, NUMA: 0}
	switches := 1
	if k.gpus > 1 {
		switches = k.gpus / 2
		near.Switch = -1
	}
	far := placement.Locality{Switch: -1, NUMA: 1}
	n.CPUs = []placement.CPU{{Locality: near, Cores: 500 * k.cores}, {Locality: far, Cores: 500 * k.cores}}
	for i := range switches {
		at := placement.Locality{Switch: i, NUMA: 2 * i / max(switches, 2)}
		n.NICs = append(n.NICs, placement.NIC{Locality: at})
		for range min(k.gpus, 2) {
			n.GPUs = append(n.GPUs, placement.GPU{Locality: at, Model: k.model, MIG: k.mig})
		}
	}
	return n
}

// share is the number of nodes of a kind per leaf.
type share struct {
	kind
	count int
}

// clos makes the nodes of equal leaves below spines.
func clos(spines, leaves int, shares ...share) []placement.Node {
	var nodes []placement.Node
	for spine := range spines {
		for leaf := range leaves {
			for _, s := range shares {
				for number := range s.count {
					nodes = append(nodes, s.node(spine, leaf, number))
				}
			}
		}
	}
	return nodes
}

func newCluster(nodes []placement.Node, options placement.Options) (*placement.Cluster, error) {
	c, err := placement.NewCluster(options)
	if err != nil {
		return nil, err
	}
	for i := range nodes {
		if err := c.AddNode(nodes[i]); err != nil {
			return nil, err
		}
	}
	return c, nil
}
