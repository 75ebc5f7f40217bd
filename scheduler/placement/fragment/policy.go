package fragment

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Policy picks a node and GPUs for one pod at a time.
type Policy interface {
	// Choose returns the position of a node that fits, and the GPUs there; -1 if none fits.
	Choose(p *Pod) (node int, gpus []int)
	// Changed reports that a node has changed since the last Choose.
	Changed(node int)
}

// random takes any node that fits, and any GPUs with enough free share.
type random struct {
	nodes []Node
	rand  *rand.Rand
}

// Random returns a policy that takes any node that fits.
func Random(nodes []Node, source *rand.Rand) Policy { return &random{nodes, source} }

func (r *random) Changed(int) {}

func (r *random) Choose(p *Pod) (int, []int) {
	node, seen := -1, 0
	for i := range r.nodes {
		if r.nodes[i].Fits(p) {
			if seen++; r.rand.IntN(seen) == 0 {
				node = i
			}
		}
	}
	if node < 0 || p.GPUs != 1 {
		return node, gpusOn(r.nodes, node, p)
	}
	gpu, seen := -1, 0
	for i, free := range r.nodes[node].GPUs {
		if free >= p.Share {
			if seen++; r.rand.IntN(seen) == 0 {
				gpu = i
			}
		}
	}
	return node, []int{gpu}
}

func gpusOn(nodes []Node, node int, p *Pod) []int {
	if node < 0 {
		return nil
	}
	return nodes[node].TightestGPUs(p)
}

// score is the value of one request on one node; it is valid until the node changes.
type score struct {
	version uint32
	value   int16
	gpu     int16
}

const unfit = -1

// scored takes the node with the highest score, the first of equal ones.
type scored struct {
	nodes    []Node
	versions []uint32
	scores   map[Pod][]score
	rate     func(node int, p *Pod) (value, gpu int)
}

func newScored(nodes []Node, rate func(node int, p *Pod) (value, gpu int)) *scored {
	s := &scored{nodes: nodes, versions: make([]uint32, len(nodes)), scores: map[Pod][]score{}, rate: rate}
	for i := range s.versions {
		s.versions[i] = 1
	}
	return s
}

func (s *scored) Changed(node int) { s.versions[node]++ }

func (s *scored) Choose(p *Pod) (int, []int) {
	scores := s.scores[*p]
	if scores == nil {
		scores = make([]score, len(s.nodes))
		s.scores[*p] = scores
	}
	best := -1
	for i := range scores {
		one := &scores[i]
		if one.version != s.versions[i] {
			one.version, one.value = s.versions[i], unfit
			if s.nodes[i].Fits(p) {
				value, gpu := s.rate(i, p)
				one.value, one.gpu = int16(value), int16(gpu)
			}
		}
		if one.value > unfit && (best < 0 || one.value > scores[best].value) {
			best = i
		}
	}
	if best < 0 {
		return -1, nil
	}
	if p.GPUs == 1 && scores[best].gpu >= 0 {
		return best, []int{int(scores[best].gpu)}
	}
	return best, gpusOn(s.nodes, best, p)
}

// BestFit returns the policy of FGD's study that leaves the least: half of the score counts cores relative to 128, half
// GPUs relative to 8. Scores are whole percents.
func BestFit(nodes []Node) Policy {
	const cores, gpus = 128_000, 8 * Whole
	return newScored(nodes, func(i int, p *Pod) (int, int) {
		n := &nodes[i]
		left := 0.5*float64(n.Cores-p.Cores)/cores + 0.5*float64(n.FreeGPU()-p.GPUs*p.Share)/gpus
		// Nodes with more than 128 cores would score below 0; they must stay above nodes that do not fit.
		return max(int(100*(1-left)), 0), -1
	})
}

// LeastAllocated returns the scoring of kube-scheduler's NodeResourcesFit that prefers empty nodes: the mean of the free
// fractions of cores and memory, in whole percents. full holds the resources of the nodes when empty.
func LeastAllocated(nodes, full []Node) Policy {
	return newScored(nodes, func(i int, p *Pod) (int, int) { return freeShare(&nodes[i], &full[i], p), -1 })
}

func freeShare(n, full *Node, p *Pod) int {
	cores := (n.Cores - p.Cores) * 100 / max(full.Cores, 1)
	memory := (n.Memory - p.Memory) * 100 / max(full.Memory, 1)
	return int(cores+memory) / 2
}

// MostAllocated returns the scoring of kube-scheduler that prefers full nodes.
func MostAllocated(nodes, full []Node) Policy {
	return newScored(nodes, func(i int, p *Pod) (int, int) { return 100 - freeShare(&nodes[i], &full[i], p), -1 })
}

// FGD returns the policy that minimizes the growth of fragments: the score is int(100 sigmoid(fragments before - after)),
// in GPUs, rounded as in the authors' simulator.
func FGD(nodes []Node, classes []Class) Policy {
	return newScored(nodes, func(i int, p *Pod) (int, int) {
		n := &nodes[i]
		before := GPU(n, classes)
		if p.GPUs != 1 || p.Share == Whole {
			return fgdScore(n, p, n.TightestGPUs(p), before, classes), -1
		}
		best, gpu := -1, -1
		for j, free := range n.GPUs {
			if free < p.Share || slices.Contains(n.GPUs[:j], free) {
				// A GPU with the same free share as an earlier one has the same score.
				continue
			}
			if s := fgdScore(n, p, []int{j}, before, classes); s > best {
				best, gpu = s, j
			}
		}
		return best, gpu
	})
}

func fgdScore(n *Node, p *Pod, gpus []int, before float64, classes []Class) int {
	n.Cores -= p.Cores
	for _, gpu := range gpus {
		n.GPUs[gpu] -= p.Share
	}
	after := GPU(n, classes)
	n.Cores += p.Cores
	for _, gpu := range gpus {
		n.GPUs[gpu] += p.Share
	}
	return int(100 / (1 + math.Exp((after-before)/Whole)))
}
