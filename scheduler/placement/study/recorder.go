package study

import (
	"math"
	"slices"

	"rowmill.io/scheduler/placement"
	"rowmill.io/scheduler/placement/dataset"
)

// TraceRun is the result of one policy on the trace.
type TraceRun struct {
	Policy string `json:"policy"`
	Form   string `json:"form"`
	Seed   uint64 `json:"seed"`
	// Instances counts requests for a node; Unplaced counts those that were never placed.
	Instances int `json:"instances"`
	Unplaced  int `json:"unplaced"`
	// Waited counts instances that did not start at once; WaitP99 is over all that ran, in seconds.
	Waited  int     `json:"waited"`
	WaitP99 float64 `json:"wait_s_p99"`
	WaitMax float64 `json:"wait_s_max"`
	// Crossings is the percentage of pairs of a CPU and a dense instance of one service below different leaves;
	// SpineCrossings below different spines. Both are means over samples every six hours.
	Crossings      float64 `json:"leaf_crossings_percent"`
	SpineCrossings float64 `json:"spine_crossings_percent"`
	// ServiceCrossings is the mean over services of the percentage below different leaves. Every service counts the same
	// here. Crossings counts pairs, so it depends mostly on the few largest services, which no leaf can hold.
	ServiceCrossings float64 `json:"service_leaf_crossings_percent"`
	// Fewest and ServiceFewest are lower bounds of Crossings and ServiceCrossings for any placement of the same instances.
	Fewest        float64 `json:"fewest_leaf_crossings_percent"`
	ServiceFewest float64 `json:"service_fewest_leaf_crossings_percent"`
	// NearSwitch and NearNUMA count instances by the distance between NIC and devices, in percent of those with a NIC share.
	NearSwitch float64 `json:"same_switch_percent"`
	NearNUMA   float64 `json:"same_numa_percent"`
	// NICPeak and UplinkPeak are the largest loads of one NIC and of one leaf's uplink, in percent.
	NICPeak    float64 `json:"nic_peak_percent"`
	UplinkPeak float64 `json:"uplink_peak_percent"`
	// NodesPeak is the largest number of nodes in use at once; NodesMean is the mean over samples.
	NodesPeak int     `json:"nodes_peak"`
	NodesMean float64 `json:"nodes_mean"`
	// Breaches count placements that break a rule: density, uplink at 80 percent, spine.
	DensityBreaches int `json:"density_breaches"`
	UplinkBreaches  int `json:"uplink_breaches"`
	SpineBreaches   int `json:"spine_breaches"`
}

const samplePeriod = 6 * 3600

// recorder follows placements and counts. It implements the rules itself, so that it also checks the policies that
// follow them.
type recorder struct {
	jobs     []dataset.Lifetime
	run      TraceRun
	leafOf   []int
	spineOf  []int
	onNode   []int
	services map[string]*tally
	// inOrder lists the services in order of arrival, so that sums do not depend on the order of a map.
	inOrder  []*tally
	perNode  map[nodeService]*crowd
	nics     [][]int
	uplinks  []int
	capacity []int
	waits    []float64
	nodes    int
	near     [placement.Far + 1]int
	sampled  float64
	samples  []pairSample
	crossing float64
	spines   float64
	each     float64
	used     float64
	// mosts is what one leaf can hold; fewest and eachFewest add up the lower bounds of crossings and each.
	mosts      map[string]leafMost
	fewest     float64
	eachFewest float64
}

// pairSample counts pairs of a CPU and a dense instance of one service at one time: all of them, those below one leaf, and
// the most that can be below one leaf.
type pairSample struct{ pairs, same, most int }

// tally counts instances of one service by role, below leaves and spines.
type tally struct {
	leaves, spines map[int]*[3]int
	total          [3]int
	most           leafMost
}

type nodeService struct {
	node    int
	service string
}

// crowd holds the instances of one service on one node, with their density limits.
type crowd struct {
	count  int
	limits []int
}

func newRecorder(nodes []placement.Node, jobs []dataset.Lifetime) *recorder {
	r := &recorder{
		jobs: jobs, services: map[string]*tally{}, perNode: map[nodeService]*crowd{},
		onNode: make([]int, len(nodes)), sampled: samplePeriod, mosts: leafMosts(nodes, jobs),
	}
	leaves, spines := map[[2]string]int{}, map[string]int{}
	for i := range nodes {
		n := &nodes[i]
		leaf := [2]string{n.Spine, n.Leaf}
		if _, known := leaves[leaf]; !known {
			leaves[leaf] = len(leaves)
			r.capacity = append(r.capacity, 0)
		}
		if _, known := spines[n.Spine]; !known {
			spines[n.Spine] = len(spines)
		}
		r.leafOf = append(r.leafOf, leaves[leaf])
		r.spineOf = append(r.spineOf, spines[n.Spine])
		r.nics = append(r.nics, make([]int, len(n.NICs)))
		r.capacity[leaves[leaf]] += 100 * len(n.NICs)
	}
	for i := range r.capacity {
		r.capacity[i] /= Oversubscription
	}
	r.uplinks = make([]int, len(r.capacity))
	return r
}

func (r *recorder) tally(service string) *tally {
	t := r.services[service]
	if t == nil {
		t = &tally{leaves: map[int]*[3]int{}, spines: map[int]*[3]int{}, most: r.mosts[service]}
		r.services[service] = t
		r.inOrder = append(r.inOrder, t)
	}
	return t
}

func (t *tally) move(leaf, spine int, role placement.Role, step int) {
	for _, one := range []struct {
		counts map[int]*[3]int
		at     int
	}{{t.leaves, leaf}, {t.spines, spine}} {
		if one.counts[one.at] == nil {
			one.counts[one.at] = new([3]int)
		}
		counts := one.counts[one.at]
		counts[role] += step
		if *counts == [3]int{} {
			delete(one.counts, one.at)
		}
	}
	t.total[role] += step
}

func (r *recorder) placed(job int, at spot, now float64) {
	in := &r.jobs[job].Instance
	wait := now - r.jobs[job].Created
	r.waits = append(r.waits, wait)
	if wait > 0 {
		r.run.Waited++
	}
	if r.onNode[at.node]++; r.onNode[at.node] == 1 {
		r.nodes++
		r.run.NodesPeak = max(r.run.NodesPeak, r.nodes)
	}
	key := nodeService{at.node, in.Service}
	c := r.perNode[key]
	if c == nil {
		c = &crowd{}
		r.perNode[key] = c
	}
	c.count++
	if in.Density > 0 {
		c.limits = append(c.limits, in.Density)
	}
	if len(c.limits) > 0 && c.count > slices.Min(c.limits) {
		r.run.DensityBreaches++
	}
	t, spine := r.tally(in.Service), r.spineOf[at.node]
	if len(t.spines) > 0 && t.spines[spine] == nil {
		r.run.SpineBreaches++
	}
	leaf := r.leafOf[at.node]
	t.move(leaf, spine, in.Role, 1)
	if in.NIC > 0 {
		r.near[at.distance]++
		r.nics[at.node][at.nic] += in.NIC
		r.run.NICPeak = max(r.run.NICPeak, float64(r.nics[at.node][at.nic]))
		r.uplinks[leaf] += in.NIC
		load := 100 * float64(r.uplinks[leaf]) / float64(r.capacity[leaf])
		r.run.UplinkPeak = max(r.run.UplinkPeak, load)
		if load > 80 {
			r.run.UplinkBreaches++
		}
	}
}

func (r *recorder) released(job int, at spot) {
	in := &r.jobs[job].Instance
	if r.onNode[at.node]--; r.onNode[at.node] == 0 {
		r.nodes--
	}
	key := nodeService{at.node, in.Service}
	c := r.perNode[key]
	if c.count--; c.count == 0 {
		delete(r.perNode, key)
	} else if in.Density > 0 {
		at := slices.Index(c.limits, in.Density)
		c.limits = slices.Delete(c.limits, at, at+1)
	}
	r.tally(in.Service).move(r.leafOf[at.node], r.spineOf[at.node], in.Role, -1)
	if in.NIC > 0 {
		r.nics[at.node][at.nic] -= in.NIC
		r.uplinks[r.leafOf[at.node]] -= in.NIC
	}
}

// sampleUntil takes all samples that are due before a time.
func (r *recorder) sampleUntil(now float64) {
	for ; r.sampled <= now && !math.IsInf(now, 1); r.sampled += samplePeriod {
		pairs, sameLeaf, sameSpine, together, split := 0, 0, 0, 0, 0
		each, eachFewest := 0.0, 0.0
		for _, t := range r.inOrder {
			of, same := t.total[placement.RoleCPU]*t.total[placement.RoleDense], 0
			for _, counts := range t.leaves {
				same += counts[placement.RoleCPU] * counts[placement.RoleDense]
			}
			most := t.most.together(t.total[placement.RoleCPU], t.total[placement.RoleDense])
			if of > 0 {
				each += 1 - float64(same)/float64(of)
				eachFewest += 1 - float64(most)/float64(of)
				split++
			}
			together += most
			pairs += of
			sameLeaf += same
			for _, counts := range t.spines {
				sameSpine += counts[placement.RoleCPU] * counts[placement.RoleDense]
			}
		}
		r.samples = append(r.samples, pairSample{pairs, sameLeaf, together})
		if pairs > 0 {
			r.crossing += 1 - float64(sameLeaf)/float64(pairs)
			r.spines += 1 - float64(sameSpine)/float64(pairs)
			r.fewest += 1 - float64(together)/float64(pairs)
		}
		if split > 0 {
			r.eachFewest += eachFewest / float64(split)
			r.each += each / float64(split)
		}
		r.used += float64(r.nodes)
	}
}

func (r *recorder) result() TraceRun {
	run := r.run
	run.Instances = len(r.jobs)
	slices.Sort(r.waits)
	if count := len(r.waits); count > 0 {
		run.WaitP99, run.WaitMax = r.waits[count*99/100], r.waits[count-1]
	}
	if samples := float64(len(r.samples)); samples > 0 {
		run.Crossings, run.SpineCrossings = 100*r.crossing/samples, 100*r.spines/samples
		run.ServiceCrossings = 100 * r.each / samples
		run.Fewest, run.ServiceFewest = 100*r.fewest/samples, 100*r.eachFewest/samples
		run.NodesMean = r.used / samples
	}
	if with := float64(r.near[0] + r.near[1] + r.near[2]); with > 0 {
		run.NearSwitch = 100 * float64(r.near[placement.SameSwitch]) / with
		run.NearNUMA = 100 * float64(r.near[placement.SameNUMA]) / with
	}
	return run
}
