package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

var _ fwk.ReservePlugin = &Plugin{}

// Reserve counts the pod on its node, so that the next pod sees it before it is bound. It touches memory only, because
// the scheduler also reserves and takes back on trial.
func (p *Plugin) Reserve(_ context.Context, _ fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	if err := p.state.reserve(pod, node); err != nil {
		return fwk.AsStatus(err)
	}
	p.retries.forget(pod.UID)
	return nil
}

// Unreserve reverts Reserve.
func (p *Plugin) Unreserve(_ context.Context, _ fwk.CycleState, pod *v1.Pod, node string) {
	p.state.unreserve(pod.UID, node)
}
