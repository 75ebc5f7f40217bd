package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

var _ fwk.FilterPlugin = &Plugin{}

// Filter rejects nodes that break a rule of spines, groups, density, NICs or uplinks.
func (p *Plugin) Filter(_ context.Context, state fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	c, status := cycleOf(state)
	if status != nil {
		return status
	}
	p.state.mu.RLock()
	missed, err := c.question.Misses(node.Node().Name, c.assumed)
	p.state.mu.RUnlock()
	if err != nil {
		// The scheduler's list of nodes and ours differ for a moment. An error makes it try the pod again soon.
		return fwk.AsStatus(err)
	}
	code := fwk.Success
	var texts []string
	for _, shortage := range missed {
		text := reasons[shortage.Rule]
		if text == "" {
			continue
		}
		p.metrics.node(shortage.Rule)
		texts = append(texts, text)
		if code = max(code, fwk.Unschedulable); !preemptible(shortage.Rule) {
			code = fwk.UnschedulableAndUnresolvable
		}
	}
	if code == fwk.Success {
		return nil
	}
	return fwk.NewStatus(code, texts...)
}
