package study

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"rowmill.io/scheduler/placement"
	"rowmill.io/scheduler/placement/dataset"
	"rowmill.io/scheduler/placement/fragment"
)

// The replay runs the 31 days of the 2025 trace on a cluster of the paper's machines. All policies respect resources and
// devices, as kubelet and DRA do; only ours has the rules of spine, density and uplink.

// TracePolicies are the policies of the replay.
var TracePolicies = []string{
	"rowmill", "rowmill-preferred", "least-allocated", "most-allocated", "best-fit", "fgd", "random",
}

// leafNodes is the number of nodes below a leaf.
const leafNodes = 32

// traceNodes returns 8 spines of 16 leaves of 32 nodes.
func traceNodes() []placement.Node { return traceNodesBelow(1) }

// traceNodesBelow returns the same nodes below leaves that are larger by a factor, which must divide 16.
func traceNodesBelow(factor int) []placement.Node {
	return clos(8, 16/factor, share{inference128, 21 * factor}, share{inference192, 8 * factor}, share{training, 3 * factor})
}

// Oversubscription is the ratio of NICs below a leaf to its uplink.
const Oversubscription = 1

// scheduler is one policy in a replay.
type scheduler interface {
	// place returns the position of an instance; ok is false if it has to wait.
	place(in *placement.Instance) (placed spot, ok bool)
	release(in *placement.Instance, from spot)
	// mayFit reports whether a request that did not fit may fit now, after a release on these nodes.
	mayFit(in *placement.Instance, freed []int) bool
}

// spot is a node with the details that the recorder needs.
type spot struct {
	node     int
	nic      int
	distance placement.Distance
	grant    fragment.Grant
	cores    [2]int64
}

// replay runs the events and returns the recorder's result.
func replay(nodes []placement.Node, jobs []dataset.Lifetime, policy string, seed uint64) (TraceRun, error) {
	source := rand.New(rand.NewPCG(seed, 1))
	with, err := newScheduler(nodes, jobs, policy, source)
	if err != nil {
		return TraceRun{}, err
	}
	run := runEvents(nodes, jobs, with, ranks(jobs, source))
	run.Policy, run.Seed = policy, seed
	return run, nil
}

// runEvents returns the results of all events.
func runEvents(nodes []placement.Node, jobs []dataset.Lifetime, with scheduler, rank []int) TraceRun {
	return recordEvents(nodes, jobs, with, rank).result()
}

// recordEvents creates and deletes instances; those without room wait in order of arrival.
func recordEvents(nodes []placement.Node, jobs []dataset.Lifetime, with scheduler, rank []int) *recorder {
	record := newRecorder(nodes, jobs)
	at := make([]spot, len(jobs))
	runs := make([]bool, len(jobs))
	var waiting []int
	events := eventsOf(jobs, rank)
	for i := 0; i < len(events); {
		now := events[i].time
		record.sampleUntil(now)
		var freed []int
		left := map[string]bool{}
		for ; i < len(events) && events[i].time == now && events[i].step < 0; i++ {
			job := events[i].job
			if !runs[job] {
				waiting = slices.DeleteFunc(waiting, func(other int) bool { return other == job })
				record.run.Unplaced++
				continue
			}
			with.release(&jobs[job].Instance, at[job])
			record.released(job, at[job])
			freed = append(freed, at[job].node)
			left[jobs[job].Service] = true
		}
		start := func(job int) bool {
			place, ok := with.place(&jobs[job].Instance)
			if ok {
				at[job], runs[job] = place, true
				record.placed(job, place, now)
			}
			return ok
		}
		if len(freed) > 0 {
			// Requests of one kind wait for the same room: if one fails, the others of its kind fail too. A service that lost an
			// instance may also have changed its spine.
			full := map[placement.Instance]bool{}
			waiting = slices.DeleteFunc(waiting, func(job int) bool {
				kind := jobs[job].Instance
				kind.Name = ""
				if full[kind] {
					return false
				}
				ok := (left[kind.Service] || with.mayFit(&kind, freed)) && start(job)
				full[kind] = !ok
				return ok
			})
		}
		for ; i < len(events) && events[i].time == now && events[i].step > 0; i++ {
			if job := events[i].job; !start(job) {
				waiting = append(waiting, job)
			}
		}
	}
	record.run.Unplaced += len(waiting)
	return record
}

// ranks orders instances created at the same time: services in random order, and each service's instances together in
// random order. So services that ran before the trace began are deployed one after the other.
func ranks(jobs []dataset.Lifetime, source *rand.Rand) []int {
	apps := appsOf(jobs)
	service := map[string]int{}
	for i, rank := range source.Perm(len(apps)) {
		service[apps[i].name] = rank
	}
	ranks := source.Perm(len(jobs))
	for i := range jobs {
		ranks[i] += service[jobs[i].Service] * len(jobs)
	}
	return ranks
}

func newScheduler(nodes []placement.Node, jobs []dataset.Lifetime, policy string, source *rand.Rand) (scheduler, error) {
	switch policy {
	case "rowmill":
		return newOurs(nodes, jobs, placement.Hard)
	case "rowmill-preferred":
		return newOurs(nodes, jobs, placement.Preferred)
	}
	full := emptyNodes(nodes)
	free := make([]fragment.Node, len(full))
	cores := make([][2]int64, len(full))
	for i := range full {
		free[i] = full[i].Clone()
		cores[i] = [2]int64{nodes[i].CPUs[0].Cores, nodes[i].CPUs[1].Cores}
	}
	s := &stock{nodes: nodes, free: free, cores: cores}
	switch policy {
	case "least-allocated":
		s.policy = fragment.LeastAllocated(free, full)
	case "most-allocated":
		s.policy = fragment.MostAllocated(free, full)
	default:
		s.policy = newPolicy(policy, free, fragment.Classes(podsOf(jobs), popularity), source)
	}
	return s, nil
}

// emptyNodes returns nodes with all resources free.
func emptyNodes(nodes []placement.Node) []fragment.Node {
	empty := make([]fragment.Node, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		empty[i] = fragment.NewNode(n.Name, n.Cores, n.Memory, len(n.GPUs))
		empty[i].Disk = n.Disk
		for range n.NICs {
			empty[i].NICs = append(empty[i].NICs, 100)
		}
	}
	return empty
}

// ours is the policy of package placement.
type ours struct {
	cluster *placement.Cluster
	index   map[string]int
	// free holds the free resources of the cluster, and leaves the nodes below the leaf of each node: an instance may
	// wait for room on a node, or on the uplink of its leaf.
	free   []fragment.Node
	leaves [][]int
}

func newOurs(nodes []placement.Node, jobs []dataset.Lifetime, strength placement.Strength) (*ours, error) {
	cluster, err := newCluster(nodes, placement.Options{Oversubscription: Oversubscription})
	if err != nil {
		return nil, err
	}
	o := &ours{cluster: cluster, index: map[string]int{}, free: emptyNodes(nodes)}
	leaves := map[[2]string][]int{}
	for i := range nodes {
		o.index[nodes[i].Name] = i
		leaf := [2]string{nodes[i].Spine, nodes[i].Leaf}
		leaves[leaf] = append(leaves[leaf], i)
	}
	for i := range nodes {
		o.leaves = append(o.leaves, leaves[[2]string{nodes[i].Spine, nodes[i].Leaf}])
	}
	for name, demand := range expected(jobs) {
		if err := cluster.Declare(placement.Service{Name: name, Spines: strength, Expected: demand}); err != nil {
			return nil, err
		}
	}
	return o, nil
}

func (o *ours) place(in *placement.Instance) (spot, bool) {
	a, err := o.cluster.Place(*in)
	if err != nil {
		if rejection := new(placement.Rejection); !errors.As(err, &rejection) {
			panic(err)
		}
		return spot{}, false
	}
	place := spot{node: o.index[a.Node], nic: a.NICIndex, distance: a.Distance, grant: fragment.Grant{NIC: a.NICIndex}}
	for _, share := range a.GPUs {
		place.grant.GPUs = append(place.grant.GPUs, share.Index)
	}
	pod := podOf(in)
	o.free[place.node].Hold(&pod, place.grant)
	return place, true
}

func (o *ours) release(in *placement.Instance, from spot) {
	if err := o.cluster.Release(in.Name); err != nil {
		panic(err)
	}
	pod := podOf(in)
	o.free[from.node].Give(&pod, from.grant)
}

func (o *ours) mayFit(in *placement.Instance, freed []int) bool {
	pod := podOf(in)
	return slices.ContainsFunc(freed, func(node int) bool { return anyFits(o.free, o.leaves[node], &pod) })
}

func anyFits(free []fragment.Node, nodes []int, pod *fragment.Pod) bool {
	return slices.ContainsFunc(nodes, func(node int) bool { return free[node].Fits(pod) })
}

// stock is a policy that scores nodes without topology: the first NIC with room, the fullest GPU, the first cores.
type stock struct {
	nodes  []placement.Node
	free   []fragment.Node
	cores  [][2]int64
	policy fragment.Policy
}

func (s *stock) place(in *placement.Instance) (spot, bool) {
	pod := podOf(in)
	node, gpus := s.policy.Choose(&pod)
	if node < 0 {
		return spot{}, false
	}
	place := spot{node: node, grant: s.free[node].Take(&pod, gpus)}
	s.policy.Changed(node)
	place.nic = place.grant.NIC
	place.cores[0] = min(in.Cores, s.cores[node][0])
	place.cores[1] = in.Cores - place.cores[0]
	s.cores[node][0] -= place.cores[0]
	s.cores[node][1] -= place.cores[1]
	place.distance = distanceOf(&s.nodes[node], &place)
	return place, true
}

func (s *stock) mayFit(in *placement.Instance, freed []int) bool {
	pod := podOf(in)
	return anyFits(s.free, freed, &pod)
}

func (s *stock) release(in *placement.Instance, from spot) {
	pod := podOf(in)
	s.free[from.node].Give(&pod, from.grant)
	s.cores[from.node][0] += from.cores[0]
	s.cores[from.node][1] += from.cores[1]
	s.policy.Changed(from.node)
}

// distanceOf is the distance from the NIC to the farthest GPU, or without GPUs to the farthest cores.
func distanceOf(n *placement.Node, place *spot) placement.Distance {
	farthest := placement.SameSwitch
	if place.nic < 0 {
		return farthest
	}
	nic := n.NICs[place.nic].Locality
	for _, gpu := range place.grant.GPUs {
		farthest = max(farthest, nic.Distance(n.GPUs[gpu].Locality))
	}
	if len(place.grant.GPUs) == 0 {
		for i, cores := range place.cores {
			if cores > 0 {
				farthest = max(farthest, nic.Distance(n.CPUs[i].Locality))
			}
		}
	}
	return farthest
}

// Trace replays the trace with one policy, split or whole.
func Trace(jobs []dataset.Lifetime, policy, form string, seed uint64) (TraceRun, error) {
	switch form {
	case "split":
	case "whole":
		jobs = Whole(jobs, Larger)
	default:
		return TraceRun{}, fmt.Errorf("form must be split or whole, got %q", form)
	}
	run, err := replay(traceNodes(), jobs, policy, seed)
	run.Form = form
	return run, err
}
