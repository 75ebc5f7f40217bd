package study

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"rowmill.io/scheduler/placement"
)

// SpeedResult is the decision rate of one core.
type SpeedResult struct {
	Nodes     int   `json:"nodes"`
	GPUs      int   `json:"gpus"`
	Cores     int64 `json:"cores"`
	Instances int   `json:"instances"`
	// Decisions counts timed placements; Rejected counts those without a node.
	Decisions int `json:"decisions"`
	Rejected  int `json:"rejected"`
	// PerSecond is decisions divided by the time for placing and releasing.
	PerSecond float64 `json:"decisions_per_s"`
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
	Max       float64 `json:"max_us"`
}

// Fleet is a cluster of the size that the paper names, with instances that start and end.
type Fleet struct {
	cluster *placement.Cluster
	running []placement.Instance
	source  *rand.Rand
	next    int
	result  SpeedResult
}

// NewFleet makes 5,000 nodes with 10,000 GPUs and 800,000 cores, and places 20,000 instances of 156 services.
func NewFleet(seed uint64) (*Fleet, error) {
	// 40 nodes below each of 125 leaves. On average 5.71 of them have 8 GPUs, so a leaf has 5 or 6 such nodes.
	const spines, leaves = 5, 25
	var nodes []placement.Node
	for spine := range spines {
		for leaf := range leaves {
			many := 5
			if (spine*leaves+leaf)%7 < 5 {
				many = 6
			}
			large := 40 - many - 12
			nodes = append(nodes, clos1(spine, leaf, share{training, many}, share{inference192, large}, share{inference128, 12})...)
		}
	}
	cluster, err := newCluster(nodes, placement.Options{})
	if err != nil {
		return nil, err
	}
	f := &Fleet{cluster: cluster, source: rand.New(rand.NewPCG(seed, 0))}
	f.result.Nodes = len(nodes)
	for i := range nodes {
		f.result.GPUs += len(nodes[i].GPUs)
		f.result.Cores += nodes[i].Cores / 1000
	}
	for service := range 156 {
		expected := placement.Demand{Resources: placement.Resources{Cores: 4_500_000}, GPUs: 50}
		if err := cluster.Declare(placement.Service{Name: fmt.Sprint(service), Expected: expected}); err != nil {
			return nil, err
		}
	}
	for attempt := 0; len(f.running) < 20_000; attempt++ {
		if attempt > 60_000 {
			return nil, fmt.Errorf("%d of 20000 instances fit", len(f.running))
		}
		in := f.draw()
		if _, err := cluster.Place(in); err == nil {
			f.running = append(f.running, in)
		}
	}
	f.result.Instances = len(f.running)
	return f, nil
}

// clos1 makes the nodes of one leaf.
func clos1(spine, leaf int, shares ...share) []placement.Node {
	var nodes []placement.Node
	for _, s := range shares {
		for number := range s.count {
			nodes = append(nodes, s.node(spine, leaf, number))
		}
	}
	return nodes
}

// draw makes an instance with the most common requests of the 2025 trace.
func (f *Fleet) draw() placement.Instance {
	f.next++
	in := placement.Instance{Name: fmt.Sprint(f.next), Service: fmt.Sprint(f.source.IntN(156))}
	if f.source.IntN(20) < 9 {
		in.Role, in.GPUs, in.NIC, in.Density = placement.RoleDense, 1, 25, 4
		in.Resources = placement.Resources{Cores: 8000, Memory: 40 << 10, Disk: 85 << 10}
		return in
	}
	in.NIC = 1
	in.Resources = placement.Resources{Cores: 48_000, Memory: 240 << 10, Disk: 255 << 10}
	if f.source.IntN(3) == 0 {
		in.Resources = placement.Resources{Cores: 64_000, Memory: 320 << 10, Disk: 255 << 10}
	}
	return in
}

// Decide replaces a random instance by a new one of a random service, and returns the times of placing and releasing.
func (f *Fleet) Decide() (place, release time.Duration) {
	at := f.source.IntN(len(f.running))
	gone, in := f.running[at].Name, f.draw()
	start := time.Now()
	if err := f.cluster.Release(gone); err != nil {
		panic(err)
	}
	middle := time.Now()
	_, err := f.cluster.Place(in)
	end := time.Now()
	if err != nil {
		f.result.Rejected++
		f.running[at] = f.running[len(f.running)-1]
		f.running = f.running[:len(f.running)-1]
	} else {
		f.running[at] = in
	}
	return end.Sub(middle), middle.Sub(start)
}

// Speed measures the time of decisions.
func Speed(seed uint64, decisions int) (SpeedResult, error) {
	f, err := NewFleet(seed)
	if err != nil {
		return SpeedResult{}, err
	}
	times := make([]time.Duration, decisions)
	var total time.Duration
	for i := range times {
		place, release := f.Decide()
		times[i] = place
		total += place + release
	}
	slices.Sort(times)
	r := f.result
	r.Decisions, r.PerSecond = decisions, float64(decisions)/total.Seconds()
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
	r.P50, r.P99, r.Max = us(times[decisions/2]), us(times[decisions*99/100]), us(times[decisions-1])
	return r, nil
}
