package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"rowmill.io/scheduler/placement"
)

var _ fwk.PostFilterPlugin = &Plugin{}

// PostFilter adds to the pod's event how many nodes each rule rejects, and what the nearest node lacks. Without it, the
// event would not name the rule for nodes that PreFilter left out.
func (p *Plugin) PostFilter(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	if !belongs(pod) {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	c, status := cycleOf(state)
	if status != nil {
		// PreFilter has rejected the pod, and the event says why.
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	known, err := p.snapshot().NodeInfos().List()
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	p.state.mu.RLock()
	rejection, behind := c.question.Reject(), c.freed != p.state.freed || p.state.behind(c.question, known)
	p.state.mu.RUnlock()
	if behind {
		p.retries.again(pod)
	} else {
		p.retries.forget(pod.UID)
	}
	rejection.Instance = pod.Namespace + "/" + pod.Name
	for rule, nodes := range rejection.Turned {
		if nodes > 0 {
			p.metrics.pod(placement.Rule(rule))
		}
	}
	return nil, fwk.NewStatus(fwk.Unschedulable, rejection.Error())
}
