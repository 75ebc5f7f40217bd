package plugin

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"rowmill.io/scheduler/placement"
)

var (
	_ fwk.PreFilterPlugin     = &Plugin{}
	_ fwk.PreFilterExtensions = &Plugin{}
)

// PreFilter narrows the search to the nodes below the spine of the pod's service, if the service runs and the spine rule
// is hard.
func (p *Plugin) PreFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
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
	s := p.state
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep(in, ownerOf(pod))
	question, err := s.cluster.Ask(in)
	if err != nil {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	state.Write(stateKey, &cycle{question: question, freed: s.freed})
	if zone, spine, ok := question.Spine(); ok {
		return &fwk.PreFilterResult{NodeNames: s.nodesBelow(zone, spine)}, nil
	}
	if question.Spines() == 0 {
		// The number of replicas may have changed since the last pod of the service was seen.
		s.declare(in.Service)
	}
	if question.Spines() == 0 && s.args.SpineRule == SpineHard {
		if at, ok := p.nominatedSpine(&in); ok {
			return &fwk.PreFilterResult{NodeNames: s.nodesBelow(at.zone, at.name)}, nil
		}
	}
	return nil, nil
}

// nominatedSpine returns the spine with most pods of a service's group that wait for preemption; the service has no
// other pods. Without it, pods of a new service would preempt below several spines.
func (p *Plugin) nominatedSpine(in *placement.Instance) (most spineKey, found bool) {
	counts := map[spineKey]int{}
	for name, node := range p.state.nodes {
		for _, info := range p.nominated(name) {
			other := p.state.pods[info.GetPod().UID]
			if other != nil && other.instance.Service == in.Service && other.instance.Group == in.Group && other.instance.Name != in.Name {
				counts[spineKey{node.Zone, node.Spine}]++
			}
		}
	}
	for key, count := range counts {
		if !found || count > counts[most] || count == counts[most] && key.compare(most) < 0 {
			most, found = key, true
		}
	}
	return most, found
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
