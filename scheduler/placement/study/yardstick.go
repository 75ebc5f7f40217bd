package study

import (
	"math/rand/v2"

	"rowmill.io/scheduler/placement/fragment"
)

// The yardstick repeats FGD's published experiment on the 2023 trace: pods arrive in shuffled order until they request
// 130 % of the GPUs, and none ends.

const (
	arrivals   = 1.3
	popularity = 0.95
)

// YardstickRun is one policy with one seed.
type YardstickRun struct {
	Policy string `json:"policy"`
	Seed   uint64 `json:"seed"`
	// Allocated is the percentage of GPUs in use at the end; Fragments the percentage fragmented when 90 % are requested.
	Allocated float64 `json:"allocated_percent"`
	Fragments float64 `json:"fragments_percent"`
	// Curve holds allocation and fragments at each whole percent of requested GPUs.
	Curve []CurvePoint `json:"curve"`
}

// CurvePoint is a state during the arrival of pods, in percent of all GPUs.
type CurvePoint struct {
	Arrived   float64 `json:"arrived"`
	Allocated float64 `json:"allocated"`
	Fragments float64 `json:"fragments"`
}

// YardstickPolicies are the policies with published values.
var YardstickPolicies = []string{"random", "best-fit", "fgd"}

// Yardstick runs one policy.
func Yardstick(nodes []fragment.Node, pods []fragment.Pod, policy string, seed uint64) YardstickRun {
	source := rand.New(rand.NewPCG(seed, 0))
	classes := fragment.Classes(pods, popularity)
	cluster := make([]fragment.Node, len(nodes))
	total := 0
	for i := range nodes {
		cluster[i] = nodes[i].Clone()
		total += nodes[i].FreeGPU()
	}
	order := repeated(pods, int(arrivals*float64(total)), source)
	choose := newPolicy(policy, cluster, classes, source)

	fragments := make([]float64, len(cluster))
	sum := 0.0
	for i := range cluster {
		fragments[i] = fragment.GPU(&cluster[i], classes)
		sum += fragments[i]
	}
	arrived, allocated := 0, 0
	var points [132]struct {
		count                int
		allocated, fragments float64
	}
	for i := range order {
		p := &order[i]
		arrived += p.GPUs * p.Share
		if node, gpus := choose.Choose(p); node >= 0 {
			cluster[node].Take(p, gpus)
			choose.Changed(node)
			allocated += p.GPUs * p.Share
			sum -= fragments[node]
			fragments[node] = fragment.GPU(&cluster[node], classes)
			sum += fragments[node]
		}
		at := &points[int(100*float64(arrived)/float64(total)+0.5)]
		at.count++
		at.allocated += float64(allocated)
		at.fragments += sum
	}
	run := YardstickRun{Policy: policy, Seed: seed, Allocated: 100 * float64(allocated) / float64(total)}
	for percent, at := range points {
		if at.count == 0 {
			continue
		}
		scale := 100 / float64(total) / float64(at.count)
		run.Curve = append(run.Curve, CurvePoint{float64(percent), at.allocated * scale, at.fragments * scale})
		if percent == 90 {
			run.Fragments = at.fragments * scale
		}
	}
	return run
}

// repeated shuffles pods and appends random repeats until they request this many thousandths of GPUs.
func repeated(pods []fragment.Pod, target int, source *rand.Rand) []fragment.Pod {
	order := append([]fragment.Pod(nil), pods...)
	source.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	asked := 0
	for i := range order {
		asked += order[i].GPUs * order[i].Share
	}
	for {
		p := pods[source.IntN(len(pods))]
		if asked += p.GPUs * p.Share; asked > target {
			return order
		}
		order = append(order, p)
	}
}

func newPolicy(name string, nodes []fragment.Node, classes []fragment.Class, source *rand.Rand) fragment.Policy {
	switch name {
	case "random":
		return fragment.Random(nodes, source)
	case "best-fit":
		return fragment.BestFit(nodes)
	case "fgd":
		return fragment.FGD(nodes, classes)
	default:
		panic("no policy " + name)
	}
}
