package plugin

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"rowmill.io/scheduler/placement"
)

var (
	_ fwk.PreFilterPlugin     = &Plugin{}
	_ fwk.PreFilterExtensions = &Plugin{}
)

// PreFilter narrows the search to the nodes below the spine of the pod's service, if the service runs and the spine rule
// is hard.
func (p *Plugin) PreFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	if err := p.synced(ctx); err != nil {
		return nil, fwk.AsStatus(err)
	}
	if !belongs(pod) {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	in, err := instanceOf(pod)
	if err != nil {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	c, below, err := p.state.ask(in, ownerOf(pod))
	if err != nil {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	state.Write(stateKey, c)
	if c.question.Spines() == 0 && p.state.args.SpineRule == SpineHard {
		// The lock is free here: the queue of the scheduler holds its own lock while it calls the plugin's hints.
		below = p.nominatedSpine(&in, nodes)
	}
	if below == nil {
		return nil, nil
	}
	return &fwk.PreFilterResult{NodeNames: below}, nil
}

// nominatedSpine returns the nodes below the spine with most pods of a service's group that wait for preemption, or nil if
// there are none; the service has no other pods. Without it, pods of a new service would preempt below several spines.
func (p *Plugin) nominatedSpine(in *placement.Instance, nodes []fwk.NodeInfo) sets.Set[string] {
	waiting := map[types.UID]string{}
	for _, info := range nodes {
		name := info.Node().Name
		for _, pod := range p.nominated(name) {
			waiting[pod.GetPod().UID] = name
		}
	}
	if len(waiting) == 0 {
		return nil
	}
	s := p.state
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := map[spineKey]int{}
	for uid, name := range waiting {
		pod, node := s.pods[uid], s.nodes[name]
		if pod != nil && pod.instance.Service == in.Service && pod.instance.Group == in.Group && pod.instance.Name != in.Name {
			counts[spineKey{node.Zone, node.Spine}]++
		}
	}
	var most spineKey
	for key, count := range counts {
		if counts[most] == 0 || count > counts[most] || count == counts[most] && key.compare(most) < 0 {
			most = key
		}
	}
	if counts[most] == 0 {
		return nil
	}
	return s.nodesBelow(most.zone, most.name)
}

// PreFilterExtensions returns the plugin.
func (p *Plugin) PreFilterExtensions() fwk.PreFilterExtensions { return p }

// AddPod assumes that another pod runs on a node: a nominated one, or one that preemption spares.
func (p *Plugin) AddPod(_ context.Context, state fwk.CycleState, _ *v1.Pod, other fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	c, status := cycleOf(state)
	if status != nil {
		return status
	}
	// An error makes the pod a service of its own, which is what Reserve and the informers count, too.
	in, _ := instanceOf(other.GetPod())
	if at := slices.Index(c.assumed.Gone, in.Name); at >= 0 {
		c.assumed.Gone = slices.Delete(c.assumed.Gone, at, at+1)
	} else {
		c.assumed.More = append(c.assumed.More, placement.Addition{Instance: in, Node: node.Node().Name})
	}
	return nil
}

// RemovePod assumes that another pod no longer runs on a node.
func (p *Plugin) RemovePod(_ context.Context, state fwk.CycleState, _ *v1.Pod, other fwk.PodInfo, _ fwk.NodeInfo) *fwk.Status {
	c, status := cycleOf(state)
	if status != nil {
		return status
	}
	name := string(other.GetPod().UID)
	if at := slices.IndexFunc(c.assumed.More, func(a placement.Addition) bool { return a.Name == name }); at >= 0 {
		c.assumed.More = slices.Delete(c.assumed.More, at, at+1)
	} else {
		c.assumed.Gone = append(c.assumed.Gone, name)
	}
	return nil
}
