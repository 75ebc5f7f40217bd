package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

var _ fwk.SignPlugin = &Plugin{}

// SignPod keeps pods of services out of batches: each placement changes the ranking for the next pod. Other pods are
// batched as without the plugin.
func (p *Plugin) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	if belongs(pod) {
		return nil, fwk.NewStatus(fwk.Unschedulable, "pods of a service are placed one by one")
	}
	return nil, nil
}
