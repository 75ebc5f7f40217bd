package study

import (
	"math/rand/v2"
	"slices"

	"rowmill.io/scheduler/placement"
	"rowmill.io/scheduler/placement/dataset"
	"rowmill.io/scheduler/placement/fragment"
)

// Cluster H is the cluster of the paper's figures 3 and 19, rebuilt from published numbers: more than 4,000 nodes,
// 640,000 cores and 11,000 GPUs; 90 % of both allocated; of the free resources, 34,000 cores and 222 GPUs are fragments.
// The 2023 pods and monoliths of the 2025 trace arrive in random order and are packed by best fit, until both resources
// are allocated to the level. A request beyond a level or without room is dropped. Some nodes are left empty.

// hKind is a kind of node of cluster H, with the number of such nodes.
type hKind struct {
	count  int
	cores  int64
	gpus   int
	memory int64
}

var hKinds = []hKind{
	{985, 128, 8, 1024},
	{1330, 128, 1, 1024},
	{1790, 192, 1, 1536},
}

// Knobs are the fractions of nodes that stay empty, of those with eight GPUs and of those with one. Fit chooses them by
// the fragments before the split only, with the seeds 1 to 5.
type Knobs struct {
	Eight float64 `json:"eight_gpus"`
	One   float64 `json:"one_gpu"`
}

// FittedKnobs are what Fit returns for the public traces.
var FittedKnobs = Knobs{Eight: 0.0999, One: 0.0367}

// Targets of the fit: fragments before the split in the paper.
const (
	targetCores = 34_000
	targetGPUs  = 222
	fittedLevel = 0.90
)

// Workload is the set of classes whose fragments are measured, and the arriving requests.
type Workload struct {
	pods, whole []fragment.Pod
	// Monoliths, CPU and Dense are classes of instances before and after the split; the pods of 2023 run in addition.
	Monoliths, CPU, Dense []fragment.Class
	allBefore, allAfter   []fragment.Class
	// reserve is the number of millicores that pods without a GPU leave to each free GPU of a node with eight.
	reserve int64
}

// PodRule changes the pods of 2023, to see what the saved fragments depend on.
type PodRule struct {
	Name string
	// WholeGPUs rounds shares of GPUs up to whole ones.
	WholeGPUs bool
	Reserve   int64
}

// PodRules are the rules that are compared; the first is the main one.
var PodRules = []PodRule{
	{Name: "as published"},
	{Name: "whole GPUs", WholeGPUs: true},
	{Name: "whole GPUs and cores left", WholeGPUs: true, Reserve: 4000},
}

func (r *PodRule) apply(pods []fragment.Pod) []fragment.Pod {
	changed := slices.Clone(pods)
	for i := range changed {
		if r.WholeGPUs && changed[i].GPUs > 0 {
			changed[i].Share = fragment.Whole
		}
	}
	return changed
}

// NewWorkload reads classes from both traces.
func NewWorkload(pods []fragment.Pod, jobs []dataset.Lifetime, merge Merge) Workload {
	bare := func(jobs []dataset.Lifetime, keep func(placement.Role) bool) []fragment.Pod {
		var kept []fragment.Pod
		for i := range jobs {
			if keep(jobs[i].Role) {
				pod := podOf(&jobs[i].Instance)
				// The disks and NICs of cluster H are not published.
				pod.Disk, pod.NIC = 0, 0
				kept = append(kept, pod)
			}
		}
		return kept
	}
	whole := bare(Whole(jobs, merge), func(placement.Role) bool { return true })
	cpu := bare(jobs, func(r placement.Role) bool { return r == placement.RoleCPU })
	dense := bare(jobs, func(r placement.Role) bool { return r == placement.RoleDense })
	return Workload{
		pods: pods, whole: whole,
		Monoliths: fragment.Classes(whole, 1),
		CPU:       fragment.Classes(cpu, 1),
		Dense:     fragment.Classes(dense, 1),
		allBefore: fragment.Classes(slices.Concat(pods, whole), popularity),
		allAfter:  fragment.Classes(slices.Concat(pods, cpu, dense), popularity),
	}
}

// HRun is one snapshot of cluster H.
type HRun struct {
	Seed  uint64  `json:"seed"`
	Level float64 `json:"level"`
	// AllocatedCores and AllocatedGPUs are fractions; Monoliths and Pods count running requests.
	AllocatedCores float64 `json:"allocated_cores"`
	AllocatedGPUs  float64 `json:"allocated_gpus"`
	Monoliths      int     `json:"monoliths"`
	Pods           int     `json:"pods"`
	// Before and After measure the same free resources: by monoliths, and by CPU and dense instances.
	Before fragment.Totals `json:"before"`
	After  fragment.Totals `json:"after"`
	// AllBefore and AllAfter measure by all classes with the weights of FGD, including the pods of 2023 and CPU instances.
	AllBefore fragment.Totals `json:"all_before"`
	AllAfter  fragment.Totals `json:"all_after"`
	// Partial counts free parts of GPUs that a pod shares. Every instance requests a whole GPU, so that no split can use them.
	Partial float64 `json:"partial_gpus"`
	nodes   []fragment.Node
}

// ClusterH fills cluster H to a level of both cores and GPUs and measures fragments.
func ClusterH(w *Workload, knobs Knobs, policy string, level float64, seed uint64) HRun {
	source := rand.New(rand.NewPCG(seed, 2))
	f := newFilling(knobs, level)
	run := HRun{Seed: seed, Level: level}
	run.Monoliths, run.Pods = f.fill(w, policy, source)
	run.AllocatedCores = float64(f.cores.used) / float64(f.cores.total)
	run.AllocatedGPUs = float64(f.gpus.used) / float64(f.gpus.total)
	run.nodes = f.all()
	run.Before = fragment.Measure(run.nodes, w.Monoliths, w.Monoliths)
	run.After = fragment.Measure(run.nodes, w.Dense, w.CPU)
	run.AllBefore = fragment.Measure(run.nodes, w.allBefore, w.allBefore)
	run.AllAfter = fragment.Measure(run.nodes, w.allAfter, w.allAfter)
	for i := range run.nodes {
		for _, free := range run.nodes[i].GPUs {
			if free < fragment.Whole {
				run.Partial += float64(free) / fragment.Whole
			}
		}
	}
	return run
}

// filling is cluster H while it is filled.
type filling struct {
	training, inference, empty []fragment.Node
	cores, gpus                quota
}

// quota is the allocated amount of a resource, and the largest allowed one.
type quota struct{ total, most, used int64 }

// open reports whether a request may still be placed; nearly reports whether the level is reached within a thousandth.
func (q *quota) open(asked int64) bool { return q.used+asked <= q.most }
func (q *quota) nearly() bool          { return q.used >= q.most-q.total/1000 }

func newFilling(knobs Knobs, level float64) *filling {
	f := &filling{}
	f.training, f.inference, f.empty = hNodes(knobs, level)
	for _, n := range f.all() {
		f.cores.total += n.Cores
		f.gpus.total += int64(n.FreeGPU())
	}
	f.cores.most = int64(level * float64(f.cores.total))
	f.gpus.most = int64(level * float64(f.gpus.total))
	return f
}

func (f *filling) all() []fragment.Node {
	return slices.Concat(f.training, f.inference, f.empty)
}

// fill places arriving requests. Requests for GPUs come first, in the mix of both traces: pods go to nodes with eight
// GPUs, monoliths to nodes with one, because the paper's cluster separates training and inference. When GPUs are
// allocated to the level, pods without a GPU fill the cores of both kinds of nodes.
func (f *filling) fill(w *Workload, policy string, source *rand.Rand) (monoliths, pods int) {
	training := newPolicy(policy, f.training, w.allBefore, source)
	inference := newPolicy(policy, f.inference, w.allBefore, source)
	full := map[fragment.Pod]bool{}
	var reserved []int64
	place := func(p *fragment.Pod, nodes []fragment.Node, with fragment.Policy) bool {
		node, granted := with.Choose(p)
		if node < 0 {
			return false
		}
		nodes[node].Take(p, granted)
		with.Changed(node)
		f.cores.used += p.Cores
		f.gpus.used += int64(p.GPUs * p.Share)
		return true
	}
	// After this many consecutive draws without room, no request is assumed to fit.
	const patience = 20_000
	for dropped := 0; dropped < patience && !(f.gpus.nearly() && f.cores.nearly()); dropped++ {
		at := source.IntN(len(w.pods) + len(w.whole))
		isPod := at < len(w.pods)
		var p *fragment.Pod
		if isPod {
			p = &w.pods[at]
		} else {
			p = &w.whole[at-len(w.pods)]
		}
		// Nothing is released, so a request that did not fit once never fits again.
		if full[*p] || !f.cores.open(p.Cores) || !f.gpus.open(int64(p.GPUs*p.Share)) || p.GPUs == 0 && !f.gpus.nearly() && dropped < patience/2 {
			continue
		}
		var ok bool
		switch {
		case !isPod:
			ok = place(p, f.inference, inference)
		case p.GPUs > 0:
			ok = place(p, f.training, training)
		default:
			if reserved == nil && w.reserve > 0 {
				reserved = f.reserve(w.reserve, training)
			}
			ok = place(p, f.training, training) || place(p, f.inference, inference)
		}
		if !ok {
			full[*p] = true
			continue
		}
		dropped = -1
		if isPod {
			pods++
		} else {
			monoliths++
		}
	}
	for i, cores := range reserved {
		f.training[i].Cores += cores
	}
	return monoliths, pods
}

// reserve takes cores of nodes with eight GPUs away from pods without a GPU, and returns them by node.
func (f *filling) reserve(perGPU int64, policy fragment.Policy) []int64 {
	reserved := make([]int64, len(f.training))
	for i := range f.training {
		n := &f.training[i]
		for _, free := range n.GPUs {
			if free == fragment.Whole {
				reserved[i] += perGPU
			}
		}
		reserved[i] = min(reserved[i], n.Cores)
		n.Cores -= reserved[i]
		policy.Changed(i)
	}
	return reserved
}

// hNodes returns the nodes to fill and the nodes that stay empty. Above the level of the fit fewer stay empty, in
// proportion to all free resources.
func hNodes(knobs Knobs, level float64) (training, inference, empty []fragment.Node) {
	scale := min(1, (1-level)/(1-fittedLevel))
	for _, kind := range hKinds {
		share := knobs.One
		filled := &inference
		if kind.gpus > 1 {
			share = knobs.Eight
			filled = &training
		}
		idle := int(share*scale*float64(kind.count) + 0.5)
		for i := range kind.count {
			node := fragment.NewNode("", 1000*kind.cores, 1024*kind.memory, kind.gpus)
			if i < idle {
				empty = append(empty, node)
			} else {
				*filled = append(*filled, node)
			}
		}
	}
	return training, inference, empty
}

// Fit finds knobs that reproduce the paper's fragments before the split, as the mean of five seeds. Each round changes
// the knobs by the free and usable resources that an empty node of either kind adds.
func Fit(w *Workload, rounds int) (Knobs, HRun) {
	knobs := FittedKnobs
	var mean HRun
	for range rounds {
		mean = HRun{}
		const seeds = 5
		for seed := range uint64(seeds) {
			run := ClusterH(w, knobs, "best-fit", fittedLevel, seed+1)
			mean.Before.FragmentCores += run.Before.FragmentCores / seeds
			mean.Before.FragmentGPUs += run.Before.FragmentGPUs / seeds
		}
		eight, one128, one192 := hKinds[0], hKinds[1], hKinds[2]
		// An empty node makes its resources usable: a change of the knobs changes fragments by -a*eight - b*one.
		gpuEight, gpuOne := float64(eight.count*eight.gpus), float64(one128.count+one192.count)
		coreEight := float64(eight.count) * float64(eight.cores)
		coreOne := float64(one128.count)*float64(one128.cores) + float64(one192.count)*float64(one192.cores)
		gpus, cores := mean.Before.FragmentGPUs-targetGPUs, mean.Before.FragmentCores-targetCores
		determinant := gpuEight*coreOne - gpuOne*coreEight
		knobs.Eight = max(0, knobs.Eight+(gpus*coreOne-cores*gpuOne)/determinant)
		knobs.One = max(0, knobs.One+(gpuEight*cores-coreEight*gpus)/determinant)
	}
	return knobs, mean
}
