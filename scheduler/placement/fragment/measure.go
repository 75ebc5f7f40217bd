package fragment

// GPU returns the free thousandths of a node's GPUs that are fragments, averaged over classes by weight. If a class does
// not fit the node, or requests no GPU, all of them are fragments. Otherwise those GPUs are fragments whose free share is
// below the requested one (FGD, section 3).
func GPU(n *Node, classes []Class) float64 {
	free := n.FreeGPU()
	if free == 0 {
		return 0
	}
	sum := 0.0
	for i := range classes {
		c := &classes[i]
		lost := free
		if c.GPUs > 0 && n.Cores >= c.Cores {
			fitting, small := 0, 0
			for _, gpu := range n.GPUs {
				if gpu >= c.Share {
					fitting++
				} else {
					small += gpu
				}
			}
			if fitting >= c.GPUs {
				lost = small
			}
		}
		sum += c.Weight * float64(lost)
	}
	return sum
}

// CPU returns the free millicores of a node that are fragments, averaged over classes by weight: all of them for a class
// that does not fit.
func CPU(n *Node, classes []Class) float64 {
	share := 0.0
	for i := range classes {
		if !n.Fits(&classes[i].Pod) {
			share += classes[i].Weight
		}
	}
	return share * float64(n.Cores)
}

// Totals are the free and fragmented resources of many nodes.
type Totals struct {
	// FreeCores and FragmentCores count cores, FreeGPUs and FragmentGPUs GPUs.
	FreeCores     float64 `json:"free_cores"`
	FreeGPUs      float64 `json:"free_gpus"`
	FragmentCores float64 `json:"fragment_cores"`
	FragmentGPUs  float64 `json:"fragment_gpus"`
	// NoneCores and NoneGPUs are free on nodes where no class fits.
	NoneCores float64 `json:"no_class_cores"`
	NoneGPUs  float64 `json:"no_class_gpus"`
}

// Measure adds up fragments of nodes: GPUs by classes that request a GPU, cores by the other classes.
func Measure(nodes []Node, gpu, cpu []Class) Totals {
	var t Totals
	for i := range nodes {
		n := &nodes[i]
		t.FreeCores += float64(n.Cores) / 1000
		t.FreeGPUs += float64(n.FreeGPU()) / Whole
		t.FragmentCores += CPU(n, cpu) / 1000
		t.FragmentGPUs += GPU(n, gpu) / Whole
		if !fitsAny(n, cpu) {
			t.NoneCores += float64(n.Cores) / 1000
		}
		if !fitsAny(n, gpu) {
			t.NoneGPUs += float64(n.FreeGPU()) / Whole
		}
	}
	return t
}

func fitsAny(n *Node, classes []Class) bool {
	for i := range classes {
		if n.Fits(&classes[i].Pod) {
			return true
		}
	}
	return false
}
