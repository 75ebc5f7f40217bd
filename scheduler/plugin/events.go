package plugin

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"rowmill.io/scheduler/placement/kube"
)

var _ fwk.EnqueueExtensions = &Plugin{}

// EventsToRegister lists the events after which a pod that the plugin rejected may fit.
func (p *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{
			Event:          fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Delete | fwk.UpdatePodLabel | fwk.UpdatePodScaleDown},
			QueueingHintFn: p.afterPod,
		},
		{
			Event:          fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.Delete | fwk.UpdateNodeLabel | fwk.UpdateNodeAllocatable},
			QueueingHintFn: p.afterNode,
		},
	}, nil
}

// afterPod is called if another pod ends, or changes labels or requests. It helps if the pod shared a service with the
// waiting pod (density, spine, groups), or used a NIC (NIC, uplink).
func (p *Plugin) afterPod(_ klog.Logger, waiting *v1.Pod, before, after any) (fwk.QueueingHint, error) {
	for _, object := range []any{before, after} {
		pod, ok := object.(*v1.Pod)
		if !ok {
			continue
		}
		if pod.UID == waiting.UID || pod.Labels[kube.ServiceLabel] == waiting.Labels[kube.ServiceLabel] {
			return fwk.Queue, nil
		}
		if in, _ := instanceOf(pod); in.NIC > 0 {
			return fwk.Queue, nil
		}
	}
	return fwk.QueueSkip, nil
}

// afterNode is called if a node is added, removed or changed. A node below another spine than that of the service does
// not help, unless it was removed, or moved there: the service may then have another spine.
func (p *Plugin) afterNode(_ klog.Logger, waiting *v1.Pod, before, after any) (fwk.QueueingHint, error) {
	old, _ := before.(*v1.Node)
	node, ok := after.(*v1.Node)
	if !ok {
		return fwk.Queue, nil
	}
	now := nodeOf(node, &p.state.args)
	if old != nil {
		was := nodeOf(old, &p.state.args)
		if was.Zone != now.Zone || was.Spine != now.Spine || was.Leaf != now.Leaf {
			return fwk.Queue, nil
		}
		if len(now.NICs) <= len(was.NICs) {
			return fwk.QueueSkip, nil
		}
	}
	in, err := instanceOf(waiting)
	if err != nil {
		return fwk.QueueSkip, nil
	}
	p.state.mu.RLock()
	defer p.state.mu.RUnlock()
	question, err := p.state.cluster.Ask(in)
	if err != nil {
		return fwk.Queue, err
	}
	if zone, spine, ok := question.Spine(); ok && (zone != now.Zone || spine != now.Spine) {
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}
